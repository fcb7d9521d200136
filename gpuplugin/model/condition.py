"""What a GPU says of its own condition, beyond that it answers: each fact None where the GPU or the driver has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuplugin.model.inventory import Fabric


@dataclass(frozen=True, slots=True)
class Condition:
    """One look at a GPU's condition.

    ecc_uncorrectable: memory errors since the last reset · rows_pending, rows_failed: memory rows that wait for a reset
    to be replaced, or could not be · nvlink_recoveries: since the driver was loaded, over all links · links_down: the
    numbers of NVLinks that were up before and are not now · fabric: None without one · hot, braked: whether clocks
    are lowered because of heat, or by the machine's power brake.
    """

    ecc_uncorrectable: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    nvlink_recoveries: int | None = None
    links_down: tuple[int, ...] = ()
    fabric: Fabric | None = None
    hot: bool | None = None
    braked: bool | None = None


NOTHING_TOLD = Condition()
