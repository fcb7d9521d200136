"""Files of claims: each its own, there exactly as long as its claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdi import claims, parts
from cdi.build import verify
from cdi.spec import ContainerEdits
from cdi.validate import decode
from gpuplugin.errors import CdiInvalid, CdiUnwritable
from gpuplugin.model.driver_root import Extra, Node

CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"
IMEX = parts.of_extra(Extra("imex-channel0", (Node(CHANNEL, CHANNEL, (509, 0)),)))
MPS = parts.mps("/run/mps/pipe", "/run/mps/shm")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_claims_devices_are_named_by_claim_and_device(tmp_path: Path) -> None:
    given = claims.publish(tmp_path, "0b5c-1", {"gpu-0": MPS, "channel-0": IMEX, "gpu-1": ContainerEdits()})
    assert given == {
        "gpu-0": "gpuplugin.io/claim=0b5c-1-gpu-0",
        "channel-0": "gpuplugin.io/claim=0b5c-1-channel-0",
    }
    assert names(tmp_path) == ["gpuplugin.io-claim-0b5c-1.json"]
    spec = decode((tmp_path / "gpuplugin.io-claim-0b5c-1.json").read_bytes())
    assert [device.container_edits for device in spec.devices] == [MPS, IMEX]
    assert CHANNEL in verify(spec, lambda _: False)


def test_claims_come_and_go_without_each_other(tmp_path: Path) -> None:
    for claim in ("a", "b", "c"):
        claims.publish(tmp_path, claim, {"x": IMEX})
    claims.withdraw(tmp_path, ["a", "never"])
    assert names(tmp_path) == ["gpuplugin.io-claim-b.json", "gpuplugin.io-claim-c.json"]
    (tmp_path / "gpuplugin.io-gpu.json").touch()
    assert claims.keep_only(tmp_path, ["c", "d"]) == (tmp_path / "gpuplugin.io-claim-b.json",)
    assert names(tmp_path) == ["gpuplugin.io-claim-c.json", "gpuplugin.io-gpu.json"]
    assert claims.publish(tmp_path, "c", {"x": ContainerEdits()}) == {}
    assert names(tmp_path) == ["gpuplugin.io-gpu.json"]


def test_what_cannot_be_written_or_removed_is_told(tmp_path: Path) -> None:
    with pytest.raises(CdiInvalid):
        claims.publish(tmp_path, "a", {"not a name": IMEX})
    assert names(tmp_path) == []
    (tmp_path / "gpuplugin.io-claim-a.json" / "full").mkdir(parents=True)
    with pytest.raises(CdiUnwritable):
        claims.withdraw(tmp_path, ["a"])
    assert claims.withdraw(tmp_path / "missing", ["a"]) is None
