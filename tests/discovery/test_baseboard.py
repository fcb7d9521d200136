"""When NVML's module ids are places on a baseboard."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplugin.discovery.baseboard import with_slots
from tests.topology import machines

HGX = (2, 4, 1, 3, 6, 8, 5, 7)
CARD, OTHER_CARD = "NVIDIA L40S", "NVIDIA H100 NVL"


def found(ids, models=None, before=None):
    """Slots by index. before: those of the look before; one that was not there then is in none."""
    inventory = machines.inventory([machines.Slot()] * len(ids))
    gpus = tuple(
        replace(gpu, model=model)
        for gpu, model in zip(inventory.gpus, models or ["NVIDIA H100 80GB HBM3"] * len(ids), strict=True)
    )
    previous = before and replace(
        inventory, gpus=tuple(replace(gpu, slot=slot) for gpu, slot in zip(gpus, before, strict=True))
    )
    told = {gpu.uuid: number for gpu, number in zip(gpus, ids, strict=True) if number != "unread"}
    return tuple(gpu.slot for gpu in with_slots(gpus, told, previous))


@pytest.mark.parametrize(
    ("ids", "models", "before", "slots"),
    [
        pytest.param((), None, None, (), id="no GPUs"),
        pytest.param(HGX, None, None, HGX, id="a baseboard"),
        pytest.param((3, 7, 5, 6), None, None, (3, 7, 5, 6), id="half of one, passed through"),
        pytest.param((1,) * 10, [CARD] * 10, None, (None,) * 10, id="cards"),
        pytest.param((4, 4), [OTHER_CARD] * 2, None, (None,) * 2, id="cards that say 4"),
        pytest.param((1, 4), [CARD, OTHER_CARD], None, (None,) * 2, id="cards of two models"),
        pytest.param((1, 1, 4), [CARD, CARD, OTHER_CARD], None, (None,) * 3, id="one card beside two"),
        pytest.param((*HGX, 1), [*["NVIDIA H100 80GB HBM3"] * 8, CARD], None, (*HGX, None), id="and a card beside it"),
        pytest.param(HGX * 2, None, None, (None,) * 16, id="two baseboards, which cannot be told apart"),
        pytest.param((5,), None, None, (None,), id="one GPU alone"),
        pytest.param((None,) * 4, None, None, (None,) * 4, id="a driver that does not tell"),
        pytest.param((2, None, 1), None, None, (2, None, 1), id="one that does not tell"),
        pytest.param((2, None), None, None, (None, None), id="one of two that does not tell"),
        pytest.param((2, None, 1), None, (2, 4, 1), (2, 4, 1), id="one that told before"),
        pytest.param(("unread", 4, 1), None, (2, 4, 1), (2, 4, 1), id="one that cannot be read"),
        pytest.param((2, "unread", "unread"), None, (2, 4, 1), (2, 4, 1), id="all but one cannot be read"),
        pytest.param((2,), None, (2,), (2,), id="alone now, not before"),
        pytest.param((3,), None, (2,), (None,), id="alone, with another number than before"),
        pytest.param((1, "unread"), [CARD] * 2, (None, None), (None, None), id="a card whose like cannot be read"),
        pytest.param((2, 2), None, (2, 4), (None, None), id="the same number now, though not before"),
    ],
)
def test_an_id_is_a_place_where_it_tells_gpus_of_a_model_apart(ids, models, before, slots):
    assert found(ids, models, before) == slots
