"""How long a node's GPUs are missing after the daemon starts: exec to Register received by kubelet, and by which part.

Run from the repository root: ``python bench/startup.py``. The parts are told apart by the daemon's own log. With the C
library the host's files are there before, as on a node; with --simulate the daemon writes them first, and that part is
the simulation's. CPU time is given as well: unlike the time that passes it does not depend on what else runs.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from rig import report
from rig.node import Node, Way, count, ways

BUDGET_MS = 500.0
PHASES = {
    "starting": "interpreter, configuration",
    "simulating": "writing the simulated host's files",
    "NVML answers": "imports, NVML opened and looked at",
    "offering": "CDI document, plan",
    "registered with kubelet": "serve and register (kubelet dials back meanwhile)",
}
IMPORTS = ("argparse", "gpuplugin.config", "structlog", "grpc", "gpuplugin.daemon.service", "pynvml")


async def measure(way: Way) -> None:
    exec_to_register, cpu, phases = [], [], {phase: [] for phase in PHASES}
    with Node(way=way) as node:
        async with node.kubelet:
            await node.start()  # writes the bytecode, if nobody has
            await node.offered(8)
            await node.stop()
            for _ in range(count(10, 1)):
                began, last = time.monotonic(), time.time()
                process = await node.start()
                exec_to_register.append((await node.registered() - began) * 1000)
                await node.offered(8)
                cpu.append(cpu_ms(process.pid))
                await node.stop()
                for phase in PHASES:
                    for now in node.logged(phase)[:1]:
                        phases[phase].append((now - last) * 1000)
                        last = now
    report.title(f"start, {way.value}")
    budget = (BUDGET_MS, BUDGET_MS) if way is Way.LIBRARY else None
    report.times("exec to Register received", exec_to_register, budget, "31 ms (Go)")
    report.times("  CPU time until kubelet has the list", cpu)
    for phase, taken in phases.items():
        if taken:
            report.times(f"  {PHASES[phase]}", taken)


def cpu_ms(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def imports() -> None:
    """What the imports cost, each with what it brings along and nobody had imported before."""
    code = "import sys; sys.modules['rich'] = None; "
    code += "import gpuplugin.daemon.main, gpuplugin.daemon.host, gpuplugin.daemon.service"
    costs: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(count(5, 1)):
        ran = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
        )
        for line in ran.stderr.splitlines():
            *_, cumulative, name = ("", "", *line.split("|"))
            if name.strip() in costs:
                costs[name.strip()].append(int(cumulative) / 1000)
    report.title("imports, with what they bring along")
    for name, taken in costs.items():
        report.times(f"  {name}", taken)


def main() -> None:
    for way in ways():
        asyncio.run(measure(way))
    imports()


if __name__ == "__main__":
    main()
