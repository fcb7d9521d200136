"""What the whole daemon costs a node, and the cluster's API server, while nothing happens: all parts on, 8 GPUs.

Run from the repository root: ``python bench/idle.py [MINUTES]``; 60 for an hour that is counted and not extrapolated.
Four GPUs are the device plugin's and four are for claims; labels, the topology object, the Node's condition, Events,
metrics (scraped every 15 seconds), probes and cordons are on. The API server is a stand-in in a process of its own,
which counts (see ``rig/api_server.py``).
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
import urllib.request
from collections import Counter

from memory import BUDGET_MIB, resident_mib
from rig import report
from rig.claims import node_with_api
from rig.node import QUICK, Way, ways
from startup import cpu_ms

from gpuplugin.sim.machine import load

MACHINE = "hgx-h100"
HOUR, NODES = 3600.0, 5000
SETTLE_SECONDS = 0.5 if QUICK else 20.0
MINUTES = 0.01 if QUICK else 5.0
SCRAPE_SECONDS = 15.0


async def measure(way: Way, minutes: float) -> None:
    """Print one table."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "dra_gpus": ",".join(gpu.record.uuid for gpu in load(MACHINE).gpus[4:]),
        "labels_owner": "node",
        "labels_topology_object": "true",
        "node_health_condition": "true",
        "events_enabled": "true",
        "metrics_enabled": "true",
        "metrics_address": f"127.0.0.1:{port}",
    }
    async with node_with_api(way, **settings) as (node, server):
        await node.offered(4)
        await _scraped(port)
        await asyncio.sleep(SETTLE_SECONDS)
        first, cpu, began = Counter(await server.counts()), cpu_ms(node.pid), time.monotonic()
        end = began + minutes * 60
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, SCRAPE_SECONDS))
            await _scraped(port)
        seconds = time.monotonic() - began
        share = (cpu_ms(node.pid) - cpu) / (seconds * 1000) * 100
        asked = Counter(await server.counts())
        asked.subtract(first)
        report.title(f"all parts on, 8 GPUs, {seconds / 60:.1f} minutes, {way.value}")
        report.value("resident memory", resident_mib(node.pid), "MiB", BUDGET_MIB, "five daemons")
        report.value("CPU of one core", share, "%", 1.0)
        report.value("requests of a new node, once", sum(first.values()), "requests")
        reads = sum(number for what, number in asked.items() if what.startswith(("GET ", "WATCH ")))
        hourly = reads * HOUR / seconds
        report.value("reads of an idle node an hour", hourly, "requests")
        report.value("writes of an idle node an hour", (asked.total() - reads) * HOUR / seconds, "requests", 0)
        report.value(f"reads of {NODES} idle nodes, computed", hourly * NODES / HOUR, "a second")
        for what, number in sorted(asked.items()):
            if number:
                report.value(f"  of these, counted: {what}", number, "requests")


async def _scraped(port: int) -> None:
    """Scrape, once metrics are served."""
    async with asyncio.timeout(30):
        while True:
            try:
                await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read())
            except OSError:
                await asyncio.sleep(0.1)
            else:
                return


async def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES
    await asyncio.gather(*(measure(way, minutes) for way in ways()))


if __name__ == "__main__":
    asyncio.run(main())
