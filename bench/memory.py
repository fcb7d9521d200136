"""What the daemon costs a node while nothing happens: resident memory, and CPU at default settings.

Run from the repository root: ``python bench/memory.py``. Everything that runs in the process counts: interpreter, gRPC,
NVML's library (with --simulate the Python double and what it takes to write a machine's files).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from admission import STREAMS, streams
from rig import report
from rig.node import QUICK, Way, running, ways
from startup import cpu_ms

BUDGET_MIB = 80
SETTLE_SECONDS, IDLE_SECONDS = (0.5, 0.5) if QUICK else (10.0, 20.0)


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"process {pid} has no VmRSS: has it ended?")


async def measure(way: Way) -> tuple[float, float, float]:
    """Resident memory in MiB, the same with more streams, and the share of a core in percent."""
    async with running(way=way) as node:
        pid = node.pid
        await asyncio.sleep(SETTLE_SECONDS)
        idle, before = resident_mib(pid), cpu_ms(pid)
        await asyncio.sleep(IDLE_SECONDS)
        share = (cpu_ms(pid) - before) / (IDLE_SECONDS * 1000) * 100
        async with streams(node.socket, STREAMS):
            await asyncio.sleep(SETTLE_SECONDS / 5)
            watched = resident_mib(pid)
    return idle, watched, share


async def main() -> None:
    for way, (idle, watched, share) in zip(ways(), await asyncio.gather(*map(measure, ways())), strict=True):
        report.title(f"idle with 8 GPUs, {way.value}")
        report.value("resident memory", idle, "MiB", BUDGET_MIB, "26 to 38 MB")
        report.value(f"resident memory with {STREAMS} more streams", watched, "MiB", BUDGET_MIB)
        report.value("CPU of one core", share, "%", 1.0)


if __name__ == "__main__":
    asyncio.run(main())
