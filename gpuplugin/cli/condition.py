"""``gpuplugin condition``: the way to have a Node say nothing of its GPUs' health any more."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplugin.errors import ConfigError, Problem

if TYPE_CHECKING:
    from gpuplugin.config import Config

app = typer.Typer(name="condition", help="The Node's condition GPUsHealthy: take it away.", no_args_is_help=True)

All = Annotated[bool, typer.Option("--all", help="Of all nodes, not of the one that NODE_NAME names.")]


@app.callback()
def verbs() -> None:
    """The Node's condition GPUsHealthy: take it away."""


@app.command()
def remove(everywhere: All = False) -> None:
    """Take away the condition that gpuplugin has written, and no other; prints the nodes that had it.

    It stays on the Node when the daemon ends and when it is switched off. End the daemon, or switch it off, before.
    """
    from gpuplugin.config import load  # noqa: PLC0415

    config = load(None, os.environ, {})
    if not everywhere and not config.node.name:
        raise ConfigError([Problem("", "node.name", "", "a Node's name", "Set NODE_NAME, or say --all")])
    removed = asyncio.run(_remove(config, "" if everywhere else config.node.name))
    print("\n".join(removed) if removed else "there was nothing to take away")


async def _remove(config: Config, node: str) -> tuple[str, ...]:
    from gpuplugin.kube.client import Kube  # noqa: PLC0415
    from gpuplugin.kube.conditions import remove_from_nodes  # noqa: PLC0415
    from gpuplugin.plan.node_condition import TYPE  # noqa: PLC0415

    async with Kube(config.paths.kubeconfig_file) as kube:
        return await remove_from_nodes(kube, TYPE, node)
