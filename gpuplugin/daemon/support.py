"""What the daemon puts into `gpuplugin report`: what was seen, decided and said, a file each, with nothing secret.

Left out on purpose: the environment, every file that a setting names (users, keys, kubeconfig), CDI documents of other
vendors, and what pods are made of; what is left is redacted all the same (`explain.redact`).
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

import gpuplugin
from cdi.names import FILE_PREFIX
from gpuplugin.config import Loaded
from gpuplugin.config.show import effective
from gpuplugin.daemon import log_ring
from gpuplugin.daemon.features import features
from gpuplugin.daemon.readiness import readiness
from gpuplugin.errors import ConfigError
from gpuplugin.explain.redact import redact
from gpuplugin.plan.desired import all_units
from gpuplugin.plan.kubelet_hints import hints
from gpuplugin.serving import refusals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuplugin.config import Config
    from gpuplugin.daemon.host import Host
    from gpuplugin.daemon.node import Node, Picture
    from gpuplugin.daemon.plugins import Plugins
    from gpuplugin.daemon.readiness import Readiness
    from gpuplugin.daemon.reload import ConfigSource
    from gpuplugin.model.choices import Choice
    from gpuplugin.model.kubelet import KubeletSettings, KubeletStates
    from gpuplugin.model.refusals import Refusal
    from gpuplugin.plan.desired import OfferedResource

PACKAGES: Final = ("grpcio", "protobuf", "nvidia-ml-py", "msgspec", "structlog", "lightkube", "pyudev")
_LARGEST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class State:
    """What the event loop owns, taken at one moment."""

    picture: Picture | None
    ready: Readiness
    trouble: str
    offered: tuple[OfferedResource, ...]
    choices: tuple[Choice, ...]
    refusals: tuple[Refusal, ...]

    @classmethod
    def of(cls, node: Node, plugins: Plugins, sysfs: Path) -> State:
        """Take it; to be called on the loop."""
        ready = readiness(node, plugins, sysfs)
        return cls(node.picture.value, ready, node.trouble, plugins.offered, plugins.choices, refusals.recent())


def files(
    config: Config,
    source: ConfigSource | None,
    host: Host,
    state: State,
    kubelet: tuple[KubeletSettings, KubeletStates],
) -> dict[str, str]:
    """Give the files by name, redacted. Blocks for some dozens of file calls."""
    picture = state.picture
    found: dict[str, str] = {
        "versions.json": _json(versions()),
        "status.json": _json({"readiness": state.ready, "trouble": state.trouble}),
        "config.yaml": configuration(config, source),
        "kubelet.json": _json(_kubelet(*kubelet, picture)),
        "log.jsonl": "".join(f"{json.dumps(line, default=str)}\n" for line in tuple(log_ring.recent)),
        "offers.json": _json({"resources": state.offered, "choices": state.choices}),
        "refusals.json": _json(state.refusals),
        **dict(_documents(Path(config.paths.cdi))),
    }
    if picture is not None:
        found["inventory.json"] = _json(picture.inventory)
        found["health.json"] = _json(_health(picture))
        found["features.json"] = _json(features(config, host, picture.inventory))
    return {name: redact(text) for name, text in sorted(found.items())}


def versions() -> dict[str, str]:
    """Ours, and of what we stand on."""
    found = {"gpuplugin": gpuplugin.__version__, "python": platform.python_version(), "kernel": platform.release()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def configuration(config: Config, source: ConfigSource | None) -> str:
    """Give the configuration, with where each value was set; what is wrong where the file is refused by now."""
    if source is None:
        return effective(Loaded(config, {}, None))
    try:
        return effective(source.read())
    except ConfigError as error:
        return "".join(f"# refused: {problem}\n" for problem in error.problems) + effective(Loaded(config, {}, None))


def _health(picture: Picture) -> dict[str, Any]:
    facts = picture.facts
    return {
        "faults": facts.health.told,
        "cannot_be_injected": facts.injection,
        "held": facts.held,
        "mps": facts.mps,
        "remarks": all_units(picture.inventory, picture.config).remarks,
    }


def _kubelet(settings: KubeletSettings, states: KubeletStates, picture: Picture | None) -> dict[str, Any]:
    """Settings, what they mean here, and who has which CPUs and memory by its state files, by pod UID."""

    def by_name(own: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
        return {f"{uid}/{container}": each for (uid, container), each in own.items()}

    found: dict[str, Any] = {
        "settings": settings,
        "hints": hints(settings, picture.inventory) if picture is not None else (),
        "troubles": states.troubles,
    }
    if states.cpus is not None:
        own = by_name({who: sorted(cpus) for who, cpus in states.cpus.own.items()})
        found["cpu_manager_state"] = {"policy": states.cpus.policy, "shared": sorted(states.cpus.shared), "own": own}
    if states.memory is not None:
        memory = states.memory
        found["memory_manager_state"] = {"policy": memory.policy, "nodes": memory.nodes, "own": by_name(memory.own)}
    return found


def _documents(folder: Path) -> Iterator[tuple[str, str]]:
    """Ours as they are, those of others by name alone."""
    try:
        found = sorted(folder.iterdir())
    except OSError as error:
        yield "cdi/unreadable.txt", f"{folder}: {error.strerror}\n"
        return
    yield "cdi/files.txt", "".join(f"{path.name}\n" for path in found)
    for path in found:
        if path.name.startswith(FILE_PREFIX) and path.is_file():
            with path.open(errors="replace") as file:
                yield f"cdi/{path.name}", file.read(_LARGEST)


def _json(value: Any) -> str:
    return json.dumps(msgspec.to_builtins(value, str_keys=True, enc_hook=str), indent=2, ensure_ascii=False) + "\n"
