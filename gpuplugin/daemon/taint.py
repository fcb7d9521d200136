"""The startup taint: a new node takes no pods until its GPUs can be had, so that scale-up does not race the daemon.

The node comes with the taint (the kubelet's `--register-with-taints`, or the autoscaler's template); we take it away
when the Node object itself says that the GPUs are there, since that is what the scheduler goes by. Then we are done:
the taint is not put on again when GPUs break later, health tells of that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from gpuplugin.errors import KubeError, KubeUnconfigured
from gpuplugin.explain.quantity import whole
from gpuplugin.kube.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuplugin.config import Config
    from gpuplugin.kube.client import Kube
    from gpuplugin.kube.objects import Node
    from gpuplugin.plan.desired import OfferedResource

log = structlog.get_logger()

LOOK_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
Offers = tuple["OfferedResource", ...]


async def lift(config: Config, offers: Callable[[], Offers | None]) -> None:
    """Take the taint away when the time has come, and end. offers: what kubelet has been told; None: not yet ready."""
    while offers() is None:  # noqa: ASYNC110 - what it depends on changes in many places, and a second is soon enough
        await asyncio.sleep(LOOK_SECONDS)
    from gpuplugin.kube.client import Kube  # noqa: PLC0415 - costs 10 MiB, and only this option needs it

    try:
        async with Kube(config.paths.kubeconfig_file) as kube:
            await _lift(kube, config.node.name, config.node.startup_taint, offers)
    except KubeUnconfigured as error:
        log.error("the startup taint cannot be lifted", reason=str(error))  # noqa: TRY400 - for people


async def _lift(kube: Kube, name: str, key: str, offers: Callable[[], Offers | None]) -> None:
    pauses, said, asked_for = Backoff(LOOK_SECONDS, LONGEST_PAUSE_SECONDS), "", None
    while True:
        now = offers()
        if now is None or not all(map(_offers_any, now)):
            await asyncio.sleep(LOOK_SECONDS)  # no answer of the API server could lift it
            continue
        if now != asked_for:
            asked_for = now
            pauses.reset()
        trouble = ""
        try:
            if await lift_once(kube, name, key, now):
                log.info("startup taint lifted", node=name, taint=key)
                return
        except KubeError as error:  # KubeInvalid too: taints were changed since we looked, or it is refused for ever
            trouble = str(error)
        if trouble and trouble != said:
            log.warning("the startup taint is still on the node", taint=key, reason=trouble)
        said = trouble
        await asyncio.sleep(pauses.next())


async def lift_once(kube: Kube, name: str, key: str, offers: Offers) -> bool:
    """Take the taint away if it is there and the GPUs can be had; True when it is gone. Raises KubeError's kinds."""
    from gpuplugin.kube.kinds import NODES  # noqa: PLC0415 - like the client

    node = await kube.node(name)
    place = next((place for place, taint in enumerate(node.spec.taints) if taint.key == key), None)
    if place is None:
        return True
    if not can_be_had(offers, node.status.allocatable):
        return False
    here = f"/spec/taints/{place}"
    change = ({"op": "test", "path": f"{here}/key", "value": key}, {"op": "remove", "path": here})
    after: Node = await kube.patch(NODES, name, change)
    return all(taint.key != key for taint in after.spec.taints)


def can_be_had(offers: Offers, allocatable: Mapping[str, str]) -> bool:
    """Whether a Node object says that all usable devices are there. Broken devices alone are none that can be had."""
    return all(_offers_any(offer) and _number(allocatable.get(offer.name, "0")) == offer.usable for offer in offers)


def _offers_any(offer: OfferedResource) -> bool:
    return offer.usable > 0 or offer.size == 0


def _number(text: str) -> int | None:
    """Read a quantity: the API server writes 1000 as ``1k``. None where it is none."""
    try:
        return whole(text)
    except ValueError:
        return None
