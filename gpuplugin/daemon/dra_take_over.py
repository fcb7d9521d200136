"""Taking over from the reference's driver: once it has ended, what it has prepared is held by our records."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from dra.predecessor import Predecessor
from dra.slices import DRIVER
from gpuplugin.errors import CheckpointError
from gpuplugin.kube.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dra.checkpoint import Checkpoint
    from dra.prepare import Blocking
    from gpuplugin.config import Config
    from gpuplugin.daemon.node import Node
    from gpuplugin.model.ids import GpuUuid

log = structlog.get_logger()

LOOK_SECONDS = 1.0
WATCH_SECONDS = 10.0


def predecessor(config: Config) -> Predecessor:
    """Where the reference's driver would have been."""
    kubelet = Path(config.paths.kubelet)
    return Predecessor(
        DRIVER,
        kubelet / "plugins" / DRIVER,
        kubelet / "plugins_registry",
        Path(config.paths.cdi),
        Path(config.paths.proc),
    )


def warn_of_claims(config: Config) -> None:
    """Say that claims still have GPUs where no claims are served: nobody can take them back, or keep them apart."""
    try:
        left = predecessor(config).prepared({})
    except CheckpointError:
        return
    if gpus := sorted({device.gpu for record in left for device in record.devices}):
        log.warning(
            "claims of another driver have GPUs that are handed out again here",
            gpus=gpus,
            reason="dra.gpus is not set, so nobody holds them back: set it until those claims have ended",
        )


async def take_over(before: Predecessor, checkpoint: Checkpoint, blocking: Blocking, node: Node) -> None:
    """Return once nobody else serves claims under our name, and all claims that somebody has prepared are recorded.

    Two would each prepare what the other knows nothing of, and undo each other's ResourceSlices.
    """
    if socket := before.serves():
        log.warning("another driver serves claims on this node: waiting for its end", socket=str(socket))
        while before.serves():  # noqa: ASYNC110 - of another process, which tells nobody
            await asyncio.sleep(LOOK_SECONDS)
    await _looked_where_that_counts(before, blocking, node)
    gpus = node.inventory.gpus if node.inventory else ()
    whose: dict[str, GpuUuid] = {mig.uuid: gpu.uuid for gpu in gpus for mig in gpu.mig_devices}
    pauses, trouble = Backoff(0.5, 30.0), ""
    while True:
        try:
            await blocking(partial(_enter, before, checkpoint, whose))
        except CheckpointError as error:
            if str(error) != trouble:
                trouble = str(error)
                log.error("claims cannot be taken over", reason=trouble)  # noqa: TRY400 - for people
            await asyncio.sleep(pauses.next())
        else:
            return


async def _looked_where_that_counts(before: Predecessor, blocking: Blocking, node: Node) -> None:
    with suppress(CheckpointError):  # which `_enter` tells
        if not node.looked.is_set() and (slices := await blocking(before.on_unnamed_gpus)):
            why = f"the driver before us did not write on which GPU {', '.join(slices)} is: waiting for a look"
            log.warning("claims cannot be taken over yet", reason=why)
            await node.looked.wait()


async def watch(before: Predecessor) -> None:
    """Say when it comes back beside us: kubelet asks the one that has registered last."""
    there = False
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        socket = before.serves()
        if socket and not there:
            reason = f"{socket} answers too, and kubelet asks the one that registered last: remove one of the two"
            log.error("another driver serves claims beside this one", reason=reason)
        there = socket is not None


def _enter(before: Predecessor, checkpoint: Checkpoint, whose: Mapping[str, GpuUuid]) -> None:
    try:
        left = before.prepared(whose)
    except CheckpointError as error:
        log.error("what was prepared before us is asked of kubelet alone", reason=str(error))  # noqa: TRY400 - as above
        left = ()
    for record in left:
        checkpoint.adopt(record)
        devices = {device.device: device.gpu for device in record.devices}
        pods = [pod.uid for pod in record.pods]
        log.info("claim taken over from the driver before us", uid=record.uid, devices=devices, pods=pods)
    before.put_aside()
