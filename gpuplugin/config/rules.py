"""What a single value must look like beyond its type, and how it is brought to one form.

A rule carries the words that an error shows for "allowed", so that the check and its explanation stay together.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.model.ids import pci_address

if TYPE_CHECKING:
    from collections.abc import Callable

RESOURCE_PREFIX = "nvidia.com/"
RESOURCE_NAME_LENGTH = 63
"""Kubernetes' limit on the whole name, prefix included."""

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_SUBDOMAIN_LENGTH, _NAME_LENGTH = 253, 63
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_DEVICE = re.compile(rf"\d+|\d+:\d+|(?i:GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/\d+/\d+)", re.ASCII)
_GPU = re.compile(rf"(?i:GPU-{_UUID})")
_MEMORY = re.compile(r"(\d{1,18})([kKmMgGtT]?)(?:(?<=\D)i)?[bB]?", re.ASCII)
_MEMORY_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_DURATION = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+", re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_XID_LIMIT = 1 << 32
_PORT_LIMIT = 1 << 16


@dataclass(frozen=True, slots=True)
class Rule:
    """`allowed`: what may stand there, for the error · `read`: bring to one form, or ValueError with advice."""

    allowed: str
    read: Callable[[object], object] | None = None


def resource_name(value: object) -> str:
    """Put the prefix in front unless it is there, and hold the name to Kubernetes' rules."""
    text = str(value)
    suffix = text.removeprefix(RESOURCE_PREFIX)
    whole = RESOURCE_PREFIX + suffix
    if len(whole) > RESOURCE_NAME_LENGTH:
        raise ValueError(f"{whole} has {len(whole)} characters")
    if not _SUBDOMAIN.fullmatch(suffix):
        raise ValueError(f"The part after {RESOURCE_PREFIX} breaks that")
    return whole


def taint_key_or_unset(value: object) -> str:
    """Hold a taint's key to a qualified name of Kubernetes, ``domain/name`` or ``name``; an empty text is none."""
    key = str(value)
    domain, slash, name = key.rpartition("/")
    if key and any(mark in key for mark in "=:"):
        raise ValueError("Give the key alone, without the taint's value and effect")
    if slash and (len(domain) > _SUBDOMAIN_LENGTH or not _SUBDOMAIN.fullmatch(domain)):
        raise ValueError("The part before the / breaks that")
    if key and (len(name) > _NAME_LENGTH or not _NAME.fullmatch(name)):
        raise ValueError("The name after the / breaks that" if slash else "")
    return key


def absolute_path(value: object) -> str:
    """Hold a path to be absolute and free of ``..``."""
    text = str(value)
    if not text.startswith("/") or ".." in text.split("/"):
        raise ValueError("")
    return text


def absolute_path_or_unset(value: object) -> str | None:
    """As absolute_path, where an empty text means "not set"."""
    return absolute_path(value) if value != "" else None


def host_and_port(text: str) -> tuple[str | None, int]:
    """Take ``:9400``, ``127.0.0.1:9400`` or ``[::1]:9400`` apart; the host is None for all interfaces.

    Raises ValueError when it is none of these.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 <= int(port) < _PORT_LIMIT:
        raise ValueError("The port is from 0 (any that is free) to 65535")
    if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
        raise ValueError("An IPv6 address stands in brackets")
    return host.strip("[]") or None, int(port)


def address(value: object) -> str:
    """Hold an address to one that `host_and_port` can read; it stays as written."""
    host_and_port(str(value))
    return str(value)


def not_empty(value: object) -> str:
    """Hold a text to have something in it."""
    if not value:
        raise ValueError("")
    return str(value)


def xid(value: object) -> int | str:
    """Bring an entry of a health list to a number, or to ``all`` (which the reference also spells ``xids``)."""
    text = str(value).strip().lower()
    if text in ("all", "xids"):
        return "all"
    if text.isascii() and text.isdigit() and len(text) <= len(str(_XID_LIMIT)) and 0 < int(text) < _XID_LIMIT:
        return int(text)
    raise ValueError("")


def devices(value: object) -> object:
    """Bring the `devices` of a shared resource to ``all``, a count, or a list of texts."""
    if value == "all" or (isinstance(value, int) and value > 0):
        return value
    if isinstance(value, list | tuple) and value and all(_DEVICE.fullmatch(str(entry)) for entry in value):
        return [str(entry) for entry in value]
    raise ValueError("")


def excluded(value: object) -> int | str:
    """Bring what names a GPU to the GPU's own form: index, UUID, PCI address, or a pattern for its model."""
    text = str(value).strip()
    if text.isascii() and text.isdigit():
        return int(text)
    if _GPU.fullmatch(text):
        return f"GPU-{text[4:].lower()}"
    if text.upper().startswith("GPU-"):
        raise ValueError("That is not a GPU's whole UUID")
    if text.upper().startswith("MIG-"):
        raise ValueError("A MIG device cannot be left out on its own")
    with suppress(ValueError):
        return pci_address(text)
    if not text or isinstance(value, bool):
        raise ValueError("")
    return text


def memory_bytes(size: str | int) -> int:
    """How many bytes a size is: a number, or one with a unit (``10G`` is 10 · 1024³, as MPS counts; ``10Gi`` as well).

    Raises ValueError when it is none of these.
    """
    match = _MEMORY.fullmatch(str(size))
    if match is None or int(match[1]) == 0:
        raise ValueError("")
    return int(match[1]) << _MEMORY_SHIFTS[match[2].upper()[:1]]


def for_claims(value: object) -> str:
    """Bring what names GPUs for claims to one form: UUID, PCI address, or a pattern for the model; all is ``*``."""
    named = excluded(value)
    if isinstance(named, int):
        raise ValueError("An index moves when a GPU is lost, and the GPU would change its owner")  # noqa: TRY004
    if named.lower() == "none":
        raise ValueError("It would be taken for a model; for no GPU leave the key out, or give an empty list")
    return "*" if named == "all" else named


def memory(value: object) -> str | int:
    """Hold a size to one that `memory_bytes` can read; it stays as written."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("")  # noqa: TRY004 -- a rule's refusal is always a ValueError
    memory_bytes(value)
    return value


def seconds(duration: str | int) -> float:
    """How long a duration is: Go's notation (``1m30s``), ``infinite``, or a number of nanoseconds.

    Raises ValueError when it is none of these.
    """
    if isinstance(duration, int):
        return duration * 1e-9
    if duration == "infinite":
        return float("inf")
    if duration == "0":
        return 0.0
    if not _DURATION.fullmatch(duration):
        raise ValueError("")
    total = sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(duration))
    return -total if duration.startswith("-") else total


def duration(value: object) -> str | int:
    """Hold a duration to one that `seconds` can read; it stays as written."""
    if not isinstance(value, str | int):
        raise ValueError("")  # noqa: TRY004 -- a rule's refusal is always a ValueError
    if seconds(value) < 0:
        raise ValueError("")
    return value


ABSOLUTE_PATH = Rule("an absolute path without ..", absolute_path)
OPTIONAL_PATH = Rule("an absolute path without .., or nothing", absolute_path_or_unset)
ADDRESS = Rule("an address and a port such as 127.0.0.1:9400, or :9400 for all addresses", address)
TEXT = Rule("a text that is not empty", not_empty)
RESOURCE_NAME = Rule(
    f"a resource name of at most {RESOURCE_NAME_LENGTH} characters with its prefix {RESOURCE_PREFIX} (added when"
    " missing): lower-case letters, digits, - and ., beginning and ending with a letter or digit",
    resource_name,
)
TAINT_KEY = Rule(
    f"a taint's key such as example.com/gpu-not-ready, or nothing: a name of at most {_NAME_LENGTH} letters, digits, -,"
    " _ and ., beginning and ending with a letter or digit, and before it, if anything, a DNS domain of at most"
    f" {_SUBDOMAIN_LENGTH} lower-case characters and a /",
    taint_key_or_unset,
)
XID = Rule("an XID number of 1 or more, or all", xid)
DEVICES = Rule("all, a count of 1 or more, or a list of GPU indexes, gpu:mig indexes, GPU UUIDs or MIG UUIDs", devices)
EXCLUDED = Rule("a GPU's index, UUID or PCI address, or a pattern for its model (* stands for anything)", excluded)
FOR_CLAIMS = Rule("all, a GPU's UUID or PCI address, or a pattern for its model (* stands for anything)", for_claims)
MEMORY = Rule("a size such as 10G or 512M, or a number of bytes", memory)
DURATION = Rule("a duration such as 90s or 1m30s, a number of nanoseconds, or infinite", duration)
