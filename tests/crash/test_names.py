"""Killed at any await while a swapped GPU is named: the next process gives the same name, and none means two GPUs."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dra.checkpoint import Checkpoint
from dra.name_file import load
from gpuplugin.daemon.dra_names import DeviceNames
from gpuplugin.model.inventory import Inventory
from tests.crash.test_claims import Process, Stop, run, step
from tests.dra.claims import POOL, claim
from tests.topology import machines


def machine(*letters: str) -> Inventory:
    base = machines.inventory([machines.Slot() for _ in letters])
    gpus = tuple(
        replace(gpu, uuid=f"GPU-{letter}", minor=minor)
        for minor, (gpu, letter) in enumerate(zip(base.gpus, letters, strict=True))
    )
    return replace(base, gpus=gpus)


BEFORE, AFTER = machine("a", "b"), machine("a", "new")


class World:
    """A node and its API server: `published`: names by UUID · `claims`: as allocated there."""

    def __init__(self, folder: Path, *claims: Any) -> None:
        (folder / "driver").mkdir(parents=True)
        self.file = folder / "driver" / "device-names.json"
        self.checkpoint = Checkpoint(folder / "driver" / "claims")
        self.published: dict[str, str] = {}
        self.claims_there, self.listed_as = claims, []
        self.start()

    def start(self) -> None:
        self.process = Process()
        api = SimpleNamespace(node=self._node, list=self._slices, claims=self._claims)
        self.names = DeviceNames(POOL, self.file, self.checkpoint, self.process.blocking, api, self._kubelet)  # type: ignore[arg-type]

    async def serve(self, inventory: Inventory) -> None:
        """What the daemon does from its start to its first slices."""
        await self.names.start()
        await self.names.name(inventory, self._unpublish)
        await Stop()
        self.published = {gpu.uuid: self.names.known.of(gpu.uuid) for gpu in inventory.gpus}
        await Stop()

    def kill(self, coroutine: Any) -> None:
        self.process.dead = True
        coroutine.close()
        self.start()

    async def _node(self, name: str) -> Any:
        await Stop()
        return SimpleNamespace(metadata=SimpleNamespace(name=name, uid="uid"))

    async def _slices(self, *_: Any, **__: Any) -> Any:
        await Stop()
        return (), "1"

    async def _kubelet(self) -> Any:
        await Stop()
        return SimpleNamespace(claimed=())

    async def _claims(self, keep: Any) -> Any:
        await Stop()
        self.listed_as.append(dict(self.published))
        return [one for one in self.claims_there if keep(one)]

    async def _unpublish(self, names: frozenset[str], without: Any) -> str:
        await Stop()
        self.published = {uuid: name for uuid, name in self.published.items() if name not in names}
        assert not set(without) & self.published.keys()
        await Stop()
        return ""


@pytest.mark.parametrize(
    ("claims", "expected"), [((), "gpu-1"), ((claim("held", 1),), "gpu-2")], ids=["nobody means it", "a claim means it"]
)
def test_killed_anywhere_the_next_one_gives_the_same_name(tmp_path, claims, expected, monkeypatch):
    monkeypatch.setattr("gpuplugin.daemon.dra_names.asyncio.timeout", lambda _: nullcontext())  # there is no loop
    for stops in range(1, 100):
        world = World(tmp_path / f"{stops}", *claims)
        run(world.serve(BEFORE))
        assert world.published == {"GPU-a": "gpu-0", "GPU-b": "gpu-1"}
        world.start()
        coroutine = world.serve(AFTER)
        ended, _ = step(coroutine, stops)
        assert len(set(world.published.values())) == len(world.published)
        world.kill(coroutine)
        run(world.serve(AFTER))
        assert world.published == {"GPU-a": "gpu-0", "GPU-new": expected}
        assert all("gpu-1" not in seen.values() for seen in world.listed_as), "asked while it could still be allocated"
        kept = load(world.file)[0]
        assert kept.by_gpu["GPU-new"] == expected
        assert len(set(kept.by_gpu.values())) == len(kept.by_gpu)
        if ended:
            assert stops > 8, "was stopped at all"
            return
    pytest.fail("never came to an end")
