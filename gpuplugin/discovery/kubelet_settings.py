"""Reads how kubelet is set up, from what this process can see without asking for any more rights.

By weight: the flags of kubelet's process (visible on the host, or in a pod with hostPID), its drop-in files, its
configuration file (named by a flag, or in one of the places that distributions use), its defaults. The state files of
its CPU and memory managers say under which policy it ran last. What cannot be read is told of and never raised: nothing
that the daemon does hangs on this.

Kubelet's own /configz would say it all, and is not asked: it takes the right to proxy to nodes, which is as good as
root on all of them.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from gpuplugin.model.kubelet import KubeletSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuplugin.discovery.places import Place

KIND: Final = "KubeletConfiguration"
KUBELET: Final = "/var/lib/kubelet"
USUAL_PLACES: Final = (
    (f"{KUBELET}/config.yaml", ""),  # kubeadm, and most that use it
    ("/etc/kubernetes/kubelet/config.json", "/etc/kubernetes/kubelet/config.json.d"),  # EKS
    ("/etc/kubernetes/kubelet/kubelet-config.json", ""),  # EKS before 2024
    ("/home/kubernetes/kubelet-config.yaml", ""),  # GKE
    ("/etc/kubernetes/kubelet.conf", ""),  # OpenShift; elsewhere a kubeconfig
    ("", "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d"),
    ("", "/var/lib/rancher/rke2/agent/etc/kubelet.conf.d"),
)
"""Configuration file and folder of drop-in files, for where no command line says."""
FLAGS: Final = {
    "topology-manager-policy": "topologyManagerPolicy",
    "topology-manager-scope": "topologyManagerScope",
    "topology-manager-policy-options": "topologyManagerPolicyOptions",
    "cpu-manager-policy": "cpuManagerPolicy",
    "cpu-manager-policy-options": "cpuManagerPolicyOptions",
    "memory-manager-policy": "memoryManagerPolicy",
    "reserved-cpus": "reservedSystemCPUs",
    "kube-reserved": "kubeReserved",
    "system-reserved": "systemReserved",
}
DEFAULTS: Final = {
    "topologyManagerPolicy": "none",
    "topologyManagerScope": "container",
    "cpuManagerPolicy": "none",
    "memoryManagerPolicy": "None",
}
_BYTES_MAX = 1 << 20
_CPUS_MAX = 1 << 16
_UNREADABLE = (OSError, ValueError, RecursionError, yaml.YAMLError)


@dataclass(slots=True)
class _Found:
    """What has been gathered so far. complete: nothing that is known to exist is missing, so defaults hold."""

    values: dict[str, Any] = field(default_factory=dict)
    read_from: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    complete: bool = True


def read(kubelet: Path, proc: Path, root: Place) -> KubeletSettings:
    """Read what there is. Blocks for some dozens of file calls.

    kubelet: its folder, as we see it · proc: /proc, the host's where that can be seen · root: the host's root as it is
    mounted here; it counts only where it stands for ``/`` on the host.
    """
    files, found = HostFiles(kubelet, root), _Found()
    flags = _command_line(proc)
    if flags is None:
        config, drop_ins = next(
            (place for place in USUAL_PLACES if files.is_config(place[0]) or files.is_folder(place[1])), ("", "")
        )
    else:
        config, drop_ins = flags.get("config", ""), flags.get("config-dir", "")
    for path in [*([config] if config else []), *files.drop_ins(drop_ins)]:
        _merge_file(found, files, path)
    if flags is not None:
        found.values = _merged(found.values, {key: flags[flag] for flag, key in FLAGS.items() if flag in flags})
        found.read_from.append("kubelet's command line")
    return _settings(found, files)


class HostFiles:
    """The host's files by their names there, as far as they are mounted here."""

    def __init__(self, kubelet: Path, root: Place) -> None:
        self.kubelet, self._root = kubelet, root

    def see(self, path: str) -> Path | None:
        """Where we have the host's file or folder; None where we have not."""
        names = [path]
        if Path(path).is_relative_to(KUBELET):  # where kubelet's folder is another, it has one name here and there
            own = self.kubelet / Path(path).relative_to(KUBELET)
            if os.access(own, os.F_OK):
                return own
            names.append(str(own))
        if path and self._root.host == "/":
            return next((self._root.see(found) for name in names if (found := self._root.resolve(name))), None)
        return None

    def is_config(self, path: str) -> bool:
        """Whether it is a KubeletConfiguration."""
        try:
            return bool(path) and _document(self, path).get("kind") == KIND
        except _UNREADABLE:
            return False

    def is_folder(self, path: str) -> bool:
        """Whether it is a folder that we may enter."""
        seen = self.see(path) if path else None
        return seen is not None and os.access(f"{seen}/.", os.F_OK)

    def drop_ins(self, path: str) -> Iterator[str]:
        """The drop-in files, in the order in which kubelet takes them: all below the folder, each folder by name."""
        seen = self.see(path) if path else None
        if seen is None:
            return
        with suppress(OSError):
            for each in sorted(seen.iterdir(), key=lambda each: each.name):
                if each.is_dir() and not each.is_symlink():
                    yield from self.drop_ins(f"{path}/{each.name}")
                elif each.suffix == ".conf":
                    yield f"{path}/{each.name}"


def _command_line(proc: Path) -> dict[str, str] | None:
    """The flags of kubelet's process by name; None where there is no such process to be seen."""
    for process in _processes(proc):
        try:
            if (process / "comm").read_bytes().strip() != b"kubelet":  # any process may call itself by any bytes
                continue
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        return _flags(words)
    return None


def _processes(proc: Path) -> list[Path]:
    try:
        return sorted((path for path in proc.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    except OSError:
        return []


def _flags(words: list[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    wanted = {"config", "config-dir", *FLAGS}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, is_whole, value = word.removeprefix("--").partition("=")
        name = name.replace("_", "-")
        if word.startswith("--") and name in wanted:
            flags[name] = value if is_whole else following
    return flags


def _merge_file(found: _Found, files: HostFiles, path: str) -> None:
    try:
        found.values = _merged(found.values, _document(files, path))
    except _UNREADABLE as error:
        found.troubles.append(f"{path}: {_reason(error)}")
        found.complete = False
    else:
        found.read_from.append(path)


def _document(files: HostFiles, path: str) -> dict[str, Any]:
    """Read a file as YAML, which JSON is, too. Raises what is in _UNREADABLE."""
    seen = files.see(path)
    if seen is None:
        raise FileNotFoundError("it is not there, or not mounted here")
    with seen.open("rb") as file:
        text = file.read(_BYTES_MAX + 1)
    if len(text) > _BYTES_MAX:
        raise ValueError(f"it is larger than {_BYTES_MAX} bytes")
    document = yaml.safe_load(text)
    if not isinstance(document, dict):
        raise ValueError(f"it is no {KIND}")  # noqa: TRY004 - the file's fault, not a caller's
    return document


def _merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Merge as kubelet merges drop-in files (RFC 7386): mappings key by key, null takes away, all else replaces."""
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = _merged(before if isinstance(before, dict) else {}, value)
        else:
            result[key] = value
    return result


def _settings(found: _Found, files: HostFiles) -> KubeletSettings:
    defaults = DEFAULTS if found.read_from and found.complete else {}
    values = {**defaults, **{key: value for key, value in found.values.items() if value != ""}}
    states = {name: _state(files, found, f"{KUBELET}/{name}_manager_state") for name in ("cpu", "memory")}
    reserved = _cpus(found, values.get("reservedSystemCPUs"))
    return KubeletSettings(
        topology_policy=_text(values.get("topologyManagerPolicy")),
        topology_scope=_text(values.get("topologyManagerScope")),
        topology_options=_options(values.get("topologyManagerPolicyOptions")),
        cpu_policy=_text(values.get("cpuManagerPolicy")),
        cpu_options=_options(values.get("cpuManagerPolicyOptions")),
        cpu_state=states["cpu"],
        memory_policy=_text(values.get("memoryManagerPolicy")),
        memory_state=states["memory"],
        reserved_cpus=reserved,
        reserves_cpu=bool(reserved or any(_has_cpu(values.get(key)) for key in ("kubeReserved", "systemReserved")))
        if defaults
        else None,
        read_from=tuple(found.read_from),
        troubles=tuple(found.troubles),
    )


def _state(files: HostFiles, found: _Found, path: str) -> str | None:
    seen = files.see(path)
    if seen is None:
        return None
    try:
        policy = json.loads(seen.read_bytes())["policyName"]
    except (*_UNREADABLE, KeyError, TypeError) as error:
        found.troubles.append(f"{path}: {_reason(error)}")
        return None
    found.read_from.append(path)
    return _text(policy)


def _options(value: object) -> dict[str, str]:
    """Give options as a file's mapping or a flag's ``name=value,name=value`` has them."""
    if isinstance(value, dict):
        return {str(key): _text(each) or "" for key, each in value.items()}
    pairs = (part.partition("=") for part in str(value or "").split(",") if part)
    return {name.strip(): text.strip() for name, _, text in pairs}


def _has_cpu(value: object) -> bool:
    amount = _options(value).get("cpu", "0").rstrip("m")
    return amount.strip("0.") != ""


def _cpus(found: _Found, value: object) -> tuple[int, ...] | None:
    """Read ``reservedSystemCPUs``, where people may have written ``8,0-3``; None where it says nothing."""
    text = _text(value)
    if not text:
        return None
    try:
        ends = [(int(one), int(last or one)) for one, _, last in (part.partition("-") for part in text.split(","))]
        if max(last for _, last in ends) >= _CPUS_MAX:
            raise ValueError(text)  # noqa: TRY301 - refused like all that is no list
        return tuple(sorted({cpu for one, last in ends for cpu in range(one, last + 1)}))
    except ValueError:
        found.troubles.append(f"reservedSystemCPUs: {text!r} is no list of CPUs; allowed: such as 0-3,8")
        return None


def _text(value: object) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
