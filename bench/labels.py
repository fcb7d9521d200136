"""How long a pass of labels takes, and how often an idle node asks the API server.

Run from the repository root: ``python bench/labels.py``. The machines are simulated in this process, and so is the API
server, which has what was written last; no time over the network is in it. The reference is NVIDIA's feature discovery:
a process of its own that looks at the machine and asks for its NodeFeature once a minute.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path

import httpx2 as httpx
from rig import report
from rig.node import count

from gpuplugin.config import Config
from gpuplugin.daemon import host, logs
from gpuplugin.daemon.label_facts import facts
from gpuplugin.daemon.labels import Labelling
from gpuplugin.discovery.nvml_thread import NvmlThread
from gpuplugin.discovery.observe import observe
from gpuplugin.discovery.sysfs import Sysfs
from gpuplugin.kube.client import Kube
from gpuplugin.kube.labels import MANAGER, LabelsOnNode
from gpuplugin.labels.build import labels

MACHINES = ("hgx-h100", "hgx-16", "mixed")
HOUR = 3600
NODES = 5000
PASS_MS = (5.0, 20.0)
REFERENCE = "200-300 ms, look included"


async def passes(name: str) -> None:
    """What follows on each change, and the whole with the look that finds the change out."""
    alone, whole = [], []
    with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
        where = host.simulated(name, Path(folder))
        async with NvmlThread(where.nvml) as thread:
            inventory = await observe(thread, Sysfs(where.sysfs), None)
            for _ in range(count(100)):
                began = time.perf_counter()
                seen = await observe(thread, Sysfs(where.sysfs), inventory)
                looked = time.perf_counter()
                labels(facts(seen, Config(), where.sysfs))
                alone.append((time.perf_counter() - looked) * 1000)
                whole.append((time.perf_counter() - began) * 1000)
            await thread.call(where.nvml.close)
    report.times(f"labels of {name}, from what is known", alone, PASS_MS)
    report.times(f"labels of {name}, with a look at the machine", whole, reference=REFERENCE)


class OneNode(httpx.AsyncBaseTransport):
    """An API server with one Node, whose labels are all ours."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Take labels, and say which there are."""
        if request.method == "PATCH":
            self.labels = json.loads(request.content)["metadata"]["labels"]
        owned = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in self.labels}}}
        entry = {"manager": MANAGER, "operation": "Apply", "fieldsV1": owned}
        meta = {"name": "here", "uid": "u", "labels": self.labels, "managedFields": [entry]}
        return httpx.Response(200, json={"metadata": meta})


async def requests(folder: Path) -> None:
    """Count what the looks of an hour ask, one look at a time."""
    config = Config()
    where = host.simulated("hgx-h100", folder / "machine")
    async with NvmlThread(where.nvml) as thread:
        inventory = await observe(thread, Sysfs(where.sysfs), None)
        await thread.call(where.nvml.close)
    access = folder / "kubeconfig"
    access.write_text(
        json.dumps(
            {
                "current-context": "a",
                "clusters": [{"name": "a", "cluster": {"server": "http://here"}}],
                "users": [{"name": "a", "user": {"token": "none"}}],
                "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            }
        )
    )
    async with Kube(access, transport=OneNode()) as kube:
        outlet, keeping = LabelsOnNode(kube, "here"), Labelling(config, None, where.sysfs)
        keeping.take(inventory, config)
        await keeping.look(outlet)
        first = dict(kube.calls)
        looks = round(HOUR / config.labels.check_seconds)
        for _ in range(looks):
            await keeping.look(outlet)
        reads, writes = (kube.calls[method] - first[method] for method in ("GET", "PATCH"))
    report.value("requests of a new node, once", sum(first.values()), "requests")
    report.value("reads of an idle node an hour", reads, "requests", reference="60 requests, by its interval")
    report.value("writes of an idle node an hour", writes, "requests", 0)
    a_second = reads * NODES / HOUR
    report.value(f"reads of {NODES} idle nodes, computed", a_second, "a second", reference="83 a second, likewise")


async def main() -> None:
    logs.configure("error", "text")
    report.title("node labels")
    for name in MACHINES:
        await passes(name)
    with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
        await requests(Path(folder))


if __name__ == "__main__":
    asyncio.run(main())
