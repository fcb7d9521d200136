"""How soon a node has its GPUs again after kubelet restarts, also when its socket is there long before it accepts.

Run from the repository root: ``python bench/rewatch.py``.
"""

from __future__ import annotations

import asyncio
import time

from rig import report
from rig.node import QUICK, count, running, ways

BUDGET = (1000.0, 1000.0)
LATE_SECONDS = 0.5 if QUICK else 5.0


async def main() -> None:
    restarted, late = [], []
    async with running(way=ways()[0]) as node:
        kubelet = node.kubelet
        for _ in range(count(20)):
            await kubelet.stop()
            registered = asyncio.create_task(node.registered())
            began = time.monotonic()
            await kubelet.start()
            restarted.append((await registered - began) * 1000)
            await node.offered(8)
        kubelet.accept_after = LATE_SECONDS
        for _ in range(count(3, 1)):
            await kubelet.stop()
            registered = asyncio.create_task(node.registered())
            await kubelet.start()
            accepts = time.monotonic() + LATE_SECONDS
            late.append((await registered - accepts) * 1000)
            await node.offered(8)
    report.title("kubelet restarts")
    report.times("kubelet.sock made until registered", restarted, BUDGET, "220 to 1,220 ms on a real kubelet")
    text = f"socket there, accepts after {LATE_SECONDS:g} s: accepts until registered"
    report.times(text, late, BUDGET, "next try 30 s later")


if __name__ == "__main__":
    asyncio.run(main())
