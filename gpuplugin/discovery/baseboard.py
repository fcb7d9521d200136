"""A GPU's place on its baseboard, out of NVML's module ids.

NVML's documentation has it that cards, which sit on no baseboard, answer 0. In truth all cards of a model answer the
same number: an A40, L4 or L40S says 1, an H100 NVL says 4. GPUs of a baseboard each answer their own. So an id is taken
for a place only where it tells GPUs of one model apart; of one alone it cannot be said.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplugin.model.ids import GpuUuid
    from gpuplugin.model.inventory import Gpu, Inventory


def with_slots(
    gpus: Sequence[Gpu], module_ids: Mapping[GpuUuid, int | None], previous: Inventory | None
) -> tuple[Gpu, ...]:
    """Give the GPUs with their `slot`.

    module_ids: what NVML says now. A GPU that is not in it, or says nothing, stays where it was in `previous`; and what
    was a place there still is one when the other GPUs are gone.
    """
    before = {gpu.uuid: gpu.slot for gpu in previous.gpus} if previous else {}
    ids = {gpu.uuid: module_ids.get(gpu.uuid) or before.get(gpu.uuid) for gpu in gpus}
    said = Counter((gpu.model, ids[gpu.uuid]) for gpu in gpus)
    told = Counter(gpu.model for gpu in gpus if ids[gpu.uuid])

    def slot(gpu: Gpu) -> int | None:
        number = ids[gpu.uuid]
        own = said[gpu.model, number] == 1
        return number if own and (told[gpu.model] > 1 or number == before.get(gpu.uuid)) else None

    return tuple(replace(gpu, slot=slot(gpu)) for gpu in gpus)
