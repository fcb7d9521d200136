"""``gpuplugin cdi generate`` and ``diff``: one look at the machine, and the document that follows from it."""

from __future__ import annotations

import asyncio
import difflib
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cdi import registry, writer
from cdi.build import Built, Options, build, build_extra, without_missing
from cdi.hooks import Hooks
from cdi.names import Naming
from cdi.spec import Spec, encode
from cdi.validate import refusals, validate
from cdi.yamltext import encode_yaml
from gpuplugin.cli.look import observe_host
from gpuplugin.config import load
from gpuplugin.daemon import host
from gpuplugin.discovery.driver_root import DriverRootSearch
from gpuplugin.errors import CdiRefused, NvmlUnavailable, ObserveError
from gpuplugin.model.driver_root import Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplugin.model.driver_root import DriverRoot, Extra, HostFile, Node
    from gpuplugin.model.inventory import Inventory

FORMATS = {"yaml": encode_yaml, "json": encode}
MODES = {
    "gdrcopy": ("gdrcopy", Wanted(gdrcopy=True)),
    "gds": ("gds", Wanted(gds=True)),
    "mofed": ("mofed", Wanted(mofed=True)),
    "imex": ("imex-channel", Wanted(imex_channels=(0,))),
}
"""Class and what is looked for, where it is not GPUs."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asked for, as the options say it."""

    driver_root: str
    dev_root: str | None
    strategies: Sequence[str]
    vendor: str
    class_: str | None
    mode: str
    hook_path: str | None
    disabled_hooks: Sequence[str]
    simulate: str | None

    @property
    def kind(self) -> str:
        """The kind of the document."""
        return f"{self.vendor}/{self.class_ or ('gpu' if self.mode == 'gpu' else MODES[self.mode][0])}"

    @property
    def options(self) -> Options:
        """How the document is built. Raises CdiRefused for a strategy that there is not."""
        names = [name for words in self.strategies for name in words.split(",")]
        allowed = [naming.value for naming in Naming]
        namings = tuple(Naming(_one_of("--device-name-strategy", name, allowed)) for name in names)
        hooks = Hooks(self.hook_path, tuple(self.disabled_hooks)) if self.hook_path else None
        return Options(namings=namings, everything=True, whole_of_mig=False, hooks=hooks)


def write(wish: Wish, output: Path | None, form: str | None) -> int:
    """Write the document, to a file atomically; returns the exit status."""
    form = form or ("json" if output and output.suffix == ".json" else "yaml")
    text = FORMATS[_one_of("--format", form, list(FORMATS))](_generated(wish))
    if output is None:
        sys.stdout.write(text.decode())
    elif output.suffix not in {".json", ".yaml"}:
        raise CdiRefused(f"--output {output}: runtimes read files that end in .yaml or .json, and no others")
    else:
        writer.write(output.absolute().parent, output.name, text)
    return 0


def compare(wish: Wish, file: Path | None, folders: Sequence[Path]) -> int:
    """Print the difference between a file and the document; returns the exit status, 1 where there is one."""
    new = _generated(wish)
    files = [file] if file else [path for path, spec in registry.read(folders).specs.items() if spec.kind == wish.kind]
    if len(files) != 1:
        found = f"in {' and '.join(map(str, files))}" if files else f"nowhere in {' and '.join(map(str, folders))}"
        raise CdiRefused(f"{wish.kind} is defined {found}; name the file to compare with")
    read = registry.read_files(files)
    if read.problems:
        raise CdiRefused("\n".join(read.problems))
    before, after = (encode_yaml(spec).decode().splitlines(keepends=True) for spec in (read.specs[files[0]], new))
    lines = list(difflib.unified_diff(before, after, str(files[0]), "as it would be generated now"))
    sys.stdout.writelines(lines)
    return 1 if lines else 0


def _generated(wish: Wish) -> Spec:
    """Look and build. What is left out is said on standard error; raises CdiRefused where nothing is left."""
    _one_of("--mode", wish.mode, ["gpu", *MODES])
    options = wish.options
    for problem in refusals(Spec(version="", kind=wish.kind, devices=())):
        if problem.key == "kind":
            raise CdiRefused(f"--vendor, --class: {problem.value!r} is not allowed; allowed: {problem.allowed}")
    spec = _looked_at(wish, options)
    validate(spec, f"CDI document of {wish.kind}")
    return spec


def _looked_at(wish: Wish, options: Options) -> Spec:
    if wish.simulate is not None:
        with tempfile.TemporaryDirectory(prefix="gpuplugin-") as folder:
            return _looked(wish, host.simulated(wish.simulate, Path(folder)), options)
    settings = {"nvidia-driver-root": wish.driver_root, "container-driver-root": wish.driver_root}
    if wish.dev_root:
        settings["nvidia-dev-root"] = wish.dev_root
    return _looked(wish, host.real(load(None, os.environ, settings)), options)


def _looked(wish: Wish, where: host.Host, options: Options) -> Spec:
    search = DriverRootSearch(where.driver_root, where.dev_root, where.sysfs, where.proc)
    if wish.mode != "gpu":
        (extra,) = search.nodes.extras(MODES[wish.mode][1])
        if extra.missing:
            raise CdiRefused(extra.missing)
        return build_extra(_AsIfReal(where).beside(extra), wish.kind)
    inventory = _inventory(where)
    wanted = Wanted(mps=True, hook=None if where.simulated else wish.hook_path)
    root = _AsIfReal(where).root(search.look(inventory.driver.version, inventory.gpus, wanted))
    built = build(inventory.gpus, root, wish.kind, options)
    spec, gone = without_missing(built.spec, search.exists) if built.spec and not where.simulated else (built.spec, {})
    _tell(inventory, built, [*root.warnings, *(f"{name}: {reason}" for name, reason in gone.items())])
    if spec is None:
        raise CdiRefused("no GPU can be given to a container")
    return spec


def _inventory(where: host.Host) -> Inventory:
    try:
        return asyncio.run(observe_host(where))
    except NvmlUnavailable as error:
        raise ObserveError(f"no GPU can be seen: {error}. Without a driver, try --simulate hgx-h100") from error


class _AsIfReal:
    """Says of a simulated machine's files what a real one's would be: at its own paths, nodes with numbers."""

    def __init__(self, where: host.Host) -> None:
        self._folder = str(where.driver_root.here) if where.simulated else ""

    def root(self, root: DriverRoot) -> DriverRoot:
        if not self._folder:
            return root
        return replace(
            root,
            root="/",
            dev_root="/",
            majors={},
            nodes=self._nodes(root.nodes),
            dri=tuple(replace(dri, nodes=self._nodes(dri.nodes)) for dri in root.dri),
            libraries=tuple(replace(library, host=self._path(library.host)) for library in root.libraries),
            loader_files=tuple(replace(file, host=self._path(file.host)) for file in root.loader_files),
            files=self._files(root.files),
            extras=tuple(map(self.beside, root.extras)),
        )

    def beside(self, extra: Extra) -> Extra:
        return replace(extra, nodes=self._nodes(extra.nodes), files=self._files(extra.files)) if self._folder else extra

    def _nodes(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(replace(node, host=self._path(node.host), number=node.number or (0, 0)) for node in nodes)

    def _files(self, files: Sequence[HostFile]) -> tuple[HostFile, ...]:
        return tuple(replace(file, host=self._path(file.host)) for file in files)

    def _path(self, path: str) -> str:
        return path.removeprefix(self._folder)


def _tell(inventory: Inventory, built: Built, warnings: Sequence[str]) -> None:
    names: dict[str, str] = {}
    for gpu in inventory.gpus:
        names[gpu.uuid] = f"GPU {gpu.index}"
        names |= {device.uuid: f"MIG device {gpu.index}:{device.index}" for device in gpu.mig_devices}
    for uuid, reason in built.refused.items():
        print(f"gpuplugin: {names[uuid]} is left out: {reason}", file=sys.stderr)
    for warning in warnings:
        print(f"gpuplugin: {warning}", file=sys.stderr)


def _one_of(option: str, given: str, allowed: Sequence[str]) -> str:
    if given not in allowed:
        raise CdiRefused(f"{option}: {given!r} is not allowed; allowed: {', '.join(allowed)}")
    return given
