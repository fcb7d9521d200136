"""``gpuplugin labels``: what the node would say of its GPUs, and the way to have it say nothing any more."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplugin.cli.output import show_json
from gpuplugin.errors import ConfigError, NvmlUnavailable, ObserveError, Problem

if TYPE_CHECKING:
    from gpuplugin.config import Config
    from gpuplugin.daemon.host import Host

app = typer.Typer(name="labels", help="The node's labels: show them, take them away.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print a JSON object instead of key=value lines.")]
Simulate = Annotated[
    str | None, typer.Option(metavar="NAME", help="A simulated machine (`gpuplugin machines`) or the path of its file.")
]
All = Annotated[bool, typer.Option("--all", help="Of all nodes, not of the one that NODE_NAME names.")]


@app.command()
def show(json: Json = False, simulate: Simulate = None) -> None:
    """Print the labels that this machine has, by the configuration in the environment; nothing is written.

    JSON: an object, label to value.
    """
    from gpuplugin.config import load  # noqa: PLC0415

    found = _labels(load(None, os.environ, {}), simulate)
    if json:
        show_json(found)
    else:
        for key, value in found.items():
            print(f"{key}={value}")


@app.command()
def remove(everywhere: All = False) -> None:
    """Take away the labels that gpuplugin has written, and no others; prints the nodes that had some.

    Where they are is what labels.owner says: off the Node itself, and with nfd-object and nfd-file also the object or
    the file from which Node Feature Discovery has them. With labels.topologyObject that object goes too. End the daemon
    before, or it writes them again.
    """
    from gpuplugin.config import load  # noqa: PLC0415

    config = load(None, os.environ, {})
    if not everywhere and not config.node.name and config.labels.owner != "nfd-file":
        raise ConfigError([Problem("", "node.name", "", "a Node's name", "Set NODE_NAME, or say --all")])
    removed = asyncio.run(_remove(config, "" if everywhere else config.node.name))
    print("\n".join(removed) if removed else "there was nothing to take away")


def _labels(config: Config, simulate: str | None) -> dict[str, str]:
    from gpuplugin.daemon import host  # noqa: PLC0415

    if simulate is None:
        try:
            return asyncio.run(_of(host.real(config), config))
        except NvmlUnavailable as error:
            raise ObserveError(f"no GPU can be seen: {error}. Without a driver, try --simulate hgx-h100") from error
    with tempfile.TemporaryDirectory(prefix="gpuplugin-") as folder:
        return asyncio.run(_of(host.simulated(simulate, Path(folder)), config))


async def _of(where: Host, config: Config) -> dict[str, str]:
    from gpuplugin.cli.look import observe_host  # noqa: PLC0415
    from gpuplugin.daemon.label_facts import facts  # noqa: PLC0415
    from gpuplugin.labels.build import labels  # noqa: PLC0415

    return labels(facts(await observe_host(where), config, where.sysfs))


async def _remove(config: Config, node: str) -> list[str]:
    from gpuplugin.daemon.label_file import LabelsInFile  # noqa: PLC0415
    from gpuplugin.kube import labels, topology  # noqa: PLC0415
    from gpuplugin.kube.client import Kube  # noqa: PLC0415

    settings = config.labels
    removed: list[str] = []
    if settings.owner == "nfd-file":
        file = Path(config.flags.gfd.output_file)
        return [str(file)] if LabelsInFile(file).remove() else []
    async with Kube(config.paths.kubeconfig_file) as kube:
        if settings.owner == "nfd-object":
            removed += await labels.remove_features(kube, settings.namespace, node)
        removed += await labels.remove_from_nodes(kube, node)
        if settings.topology_object:
            removed += await topology.remove(kube, node)
    return list(dict.fromkeys(removed))
