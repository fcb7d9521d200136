"""How long a CDI document takes: 8 GPUs with 7 MIG devices each, in the daemon, as a command, and after a change.

Run from the repository root: ``python bench/cdi_document.py``. The machine is simulated, its nodes are real (so
root is needed), and NVML is the C stand-in, loaded from the driver's root as on a node. The reference is nvidia-ctk,
which does 8 GPUs without MIG in 46 ms of wall time and 33 ms of CPU time; it is a Go program, and most of what a Python
command takes is spent on starting.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rig import ROOT, report
from rig.node import Way, count, running, ways

from cdi import writer
from cdi.build import Options, build, without_missing
from cdi.names import Naming
from cdi.spec import encode
from gpuplugin.cli.look import observe_host
from gpuplugin.daemon.host import Host
from gpuplugin.discovery.driver_root import DriverRootSearch
from gpuplugin.discovery.nvml_real import RealNvml
from gpuplugin.discovery.places import Place
from gpuplugin.sim import machine
from gpuplugin.sim.host import STATE_FILE, SimulatedHost
from tests.nvml.standin.build import build_standin

IN_PROCESS_MS = 20.0
REFERENCE = "46 ms wall, 33 ms CPU (8 GPUs, no MIG)"
MIG = (
    "\nmig: {"
    + ", ".join(f"{gpu}: [{', '.join(f'1g.10gb@{start}' for start in range(7))}]" for gpu in range(8))
    + "}\n"
)


def host(folder: Path, *, mig: bool) -> SimulatedHost:
    text = (Path(machine.__file__).parent / "machines/hgx-h100.yaml").read_text(encoding="utf-8")
    file = folder / "machine.yaml"
    file.write_text(text + MIG if mig else text, encoding="utf-8")
    made = SimulatedHost(machine.load(str(file)), folder / "host", device_nodes="mknod")
    shutil.copy(build_standin(), next(made.root.glob("usr/lib/*/libnvidia-ml.so.*.*")))
    (folder / "nodes").mkdir()
    for name in ["nvidiactl", *(f"nvidia{gpu.minor}" for gpu in made.state.snapshot.gpus)]:
        (folder / "nodes" / name).touch()
    return made


def in_process(folder: Path) -> None:
    """What the daemon does with each look: find, build, verify, and write where that has changed."""
    made = host(folder, mig=True)
    place = Place(made.root, str(made.root))
    where = Host(RealNvml(made.library()), made.root / "sys", made.root / "proc", place, place)
    inventory = asyncio.run(observe_host(where))
    assert sum(len(gpu.mig_devices) for gpu in inventory.gpus) == 56
    names = Options(namings=(Naming.INDEX, Naming.UUID), everything=True)
    first, again, everything, written, glances = [], [], [], [], []
    search = DriverRootSearch(place, place, where.sysfs, where.proc)

    def document(found: DriverRootSearch, options: Options = Options()) -> bytes:  # noqa: B008
        built = build(inventory.gpus, found.look(inventory.driver.version, inventory.gpus), options=options)
        spec, gone = without_missing(built.spec, found.exists)
        assert not built.refused
        assert not gone
        assert spec is not None
        return encode(spec)

    for number in range(count(100)):
        first.append(timed(lambda: document(DriverRootSearch(place, place, where.sysfs, where.proc))))
        again.append(timed(lambda: document(search)))
        everything.append(timed(lambda: document(search, names)))
        glances.append(timed(search.stamp))
        content = document(search) + b"\n" * (number % 2)
        written.append(timed(lambda content=content: writer.write(folder / "cdi", "gpuplugin.io-gpu.json", content)))
    budget = (IN_PROCESS_MS, IN_PROCESS_MS)
    report.title("document of 8 GPUs and 56 MIG devices, in process")
    report.times("found anew, built, verified, encoded", first, budget)
    report.times("with libraries known from the look before", again, budget)
    report.times("by index, UUID and all", everything, budget)
    report.times("written and on disk", written)
    report.times("glance whether anything changed (2 a second)", glances)


def command(folder: Path, *, mig: bool) -> None:
    made = host(folder, mig=mig)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUPLUGIN_")} | {
        "GPUPLUGIN_NVML_STATE": str(made.root / STATE_FILE),
        "GPUPLUGIN_NVML_DEV": str(folder / "nodes"),
        "GPUPLUGIN_PATHS_SYSFS": str(made.root / "sys"),
        "GPUPLUGIN_PATHS_PROC": str(made.root / "proc"),
    }
    output = folder / "nvidia.yaml"
    line = [
        sys.executable,
        "-m",
        "gpuplugin",
        "cdi",
        "generate",
        "--driver-root",
        str(made.root),
        "--output",
        str(output),
    ]
    wall, cpu = [], []
    for _ in range(count(20, 1) + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall.append(timed(lambda: subprocess.run(line, check=True, cwd=ROOT, env=environment)))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000)
    assert output.read_bytes().count(b"\n- name") == (2 * (56 if mig else 8) + 1)
    what = "8 GPUs and 56 MIG devices" if mig else "8 GPUs"
    report.title(f"gpuplugin cdi generate, {what}")
    report.times("wall", wall[1:], reference=REFERENCE)
    report.times("CPU", cpu[1:], reference=REFERENCE)
    report.value("highest RSS of any so far", after.ru_maxrss / 1024, "MiB", reference="27 MiB")


async def rewritten() -> None:
    """From a change of the driver's files to the document that says so, in a daemon that nothing else wakes."""
    taken = []
    async with running(way=Way.LIBRARY, health_probe_seconds="3600", rescan_seconds="86400") as node:
        document = node.folder / "cdi/gpuplugin.io-gpu.json"
        library = next(node.host.glob("usr/lib/*/libnvidia-ptxjitcompiler.so.*.*"))
        hidden = library.with_name("hidden")
        for number in range(count(20)):
            await asyncio.sleep(number * 0.037 % 0.5)  # at any moment between two glances
            before, began = document.stat().st_mtime_ns, time.monotonic()
            library, hidden = library.rename(hidden), library
            while document.stat().st_mtime_ns == before:  # noqa: ASYNC110 - a file tells nobody
                await asyncio.sleep(0.005)
            taken.append((time.monotonic() - began) * 1000)
    report.title("daemon, 8 GPUs")
    report.times("driver's files changed to document rewritten", taken, (1000, 1000))


def timed(work) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def main() -> None:
    if Way.LIBRARY not in ways():
        return
    with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
        in_process(Path(folder))
    for mig in (False, True):
        with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
            command(Path(folder), mig=mig)
    asyncio.run(rewritten())


if __name__ == "__main__":
    main()
