"""How long the choice of devices takes, beside what is allowed and what the reference takes.

Run from the repository root: ``python bench/choice.py``. Times are of this process's own clock, on whatever else the
machine is doing; the figures of the reference (go-gpuallocator) were measured with a mock of 8 H100, and its search
alone for 16 GPUs.
"""

from __future__ import annotations

import random
import time

from rig import report
from rig.node import count

from gpuplugin.topology.allocate import Tables
from gpuplugin.topology.graph import mask_of
from tests.topology import machines

CASES = [
    ("4 RTX 8000, bridges", machines.rtx8000, 1, ""),
    ("8 H100, NVSwitch", machines.hgx_h100, 1, "3 of 8: 3.1 to 4.9 ms"),
    ("8 V100, cube mesh", machines.dgx1_volta, 1, ""),
    ("16 V100, NVSwitch", machines.dgx2, 10, "16 GPUs: 2 of them 1,700 ms, 3 of them 29,000 ms"),
    ("16 all different", machines.ring_of_16, 10, ""),
]


def build_ms(make) -> list[float]:
    inventory = make()
    times = []
    for _ in range(count(5)):
        start = time.perf_counter()
        Tables.build(inventory)
        times.append((time.perf_counter() - start) * 1000)
    return times


def choose_ms(make) -> list[float]:
    """One time for each random request: any part of the GPUs free, any size, one in three with a device given."""
    inventory = make()
    tables = Tables.build(inventory)
    dice = random.Random(1)
    everyone = range(len(inventory.gpus))
    times = []
    for _ in range(count(3000)):
        free = dice.sample(everyone, dice.randint(1, len(everyone)))
        must = free[: dice.choice([0, 0, 1])]
        available, given, size = mask_of(free), mask_of(must), dice.randint(max(1, len(must)), len(free))
        start = time.perf_counter()
        tables.choose(available, given, size)
        times.append((time.perf_counter() - start) * 1000)
    return times


def main() -> None:
    report.title("choice of devices, in the daemon's own process")
    for name, make, budget, reference in CASES:
        report.times(f"{name}: choose", choose_ms(make), (budget, budget), reference)
        report.times("  tables, built once for each change of the machine", build_ms(make))


if __name__ == "__main__":
    main()
