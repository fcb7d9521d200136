"""How soon kubelet knows of a sick GPU: from the XID until its list has it.

Run from the repository root: ``python bench/health.py``. The moment at which NVML has told the daemon is taken from the
daemon's log, so that the daemon's part is apart from NVML's; of these, the stand-ins look at their state file every
millisecond (C) and every 60 (Python), where the driver's own would be an interrupt.
"""

from __future__ import annotations

import asyncio
import time

from rig import report
from rig.node import GPU, RECOVER_AT_ONCE, Way, count, running, ways

BUDGET = (50.0, 50.0)
FALLS_OFF_THE_BUS = 79


async def measure(way: Way) -> None:
    written, listed = [], []
    async with running(way=way, **RECOVER_AT_ONCE) as node:
        for number in range(count(100)):
            await node.offered(8)
            written.append(time.time())
            node.state.xid(number % 8, FALLS_OFF_THE_BUS)
            await node.kubelet.until(lambda: node.kubelet.allocatable(GPU) < 8, 10, "XID")
            listed.append(time.time())
        told = node.logged("XID")
    report.title(f"health, {way.value}")
    report.times("XID written until NVML's wait has told the daemon", _between(written, told))
    report.times("  told until kubelet has the list", _between(told, listed), BUDGET)
    report.times("  both", _between(written, listed))


def _between(earlier: list[float], later: list[float]) -> list[float]:
    return [(after - before) * 1000 for before, after in zip(earlier, later, strict=True)]


async def main() -> None:
    for way in ways():
        await measure(way)


if __name__ == "__main__":
    asyncio.run(main())
