"""``gpuplugin run``: from the command line to a running daemon, and out again.

Kubelet is registered with as early as can be: what is not needed for that is imported later.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gpuplugin.daemon import logs
from gpuplugin.daemon.beginning import FAILURE, begin
from gpuplugin.errors import GpuPluginError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplugin.config import Config
    from gpuplugin.daemon.beginning import Begun
    from gpuplugin.daemon.host import Host

log = structlog.get_logger()


def main(arguments: Sequence[str]) -> int:
    """Run until told to stop by SIGTERM or SIGINT; returns the process's exit status."""
    parser = argparse.ArgumentParser(
        prog="gpuplugin run", description="Offer this node's GPUs to kubelet.", allow_abbrev=False
    )
    parser.add_argument("--simulate", metavar="MACHINE", help="a simulated machine, by name or file, instead of NVML")
    parser.add_argument(
        "--simulate-folder", type=Path, metavar="DIR", help="where to put its files; default: a temporary folder"
    )
    begun = begin(parser, arguments)
    with ExitStack() as cleanup:
        try:
            host = _host(begun.config, begun.options.simulate, begun.options.simulate_folder, cleanup)
        except GpuPluginError as error:
            log.error("cannot start", reason=str(error))  # noqa: TRY400 - the reason is for people, the trace is not
            return FAILURE
        return _run(begun, host)


def _host(config: Config, simulate: str | None, folder: Path | None, cleanup: ExitStack) -> Host:
    from gpuplugin.daemon import host  # noqa: PLC0415 - after the configuration, which may refuse

    if simulate is None:
        return host.real(config)
    if folder is None:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="gpuplugin-")))
    made = host.simulated(simulate, folder)
    log.info("simulating", machine=simulate, folder=str(folder))
    return made


def _run(begun: Begun, host: Host) -> int:
    from gpuplugin.daemon.reload import ConfigSource  # noqa: PLC0415 - not for a configuration that is refused
    from gpuplugin.daemon.service import serve  # noqa: PLC0415 - likewise

    gc.freeze()  # what is imported stays, and is not to be searched again while a pod waits: 7 to 20 ms each time
    gc.enable()
    with asyncio.Runner() as runner:
        stop, source = asyncio.Event(), ConfigSource(begun.file, os.environ, begun.given)
        runner.get_loop().add_signal_handler(signal.SIGHUP, source.asked.set)
        runner.get_loop().add_signal_handler(signal.SIGUSR1, logs.toggle_debug)
        for number in (signal.SIGTERM, signal.SIGINT):
            runner.get_loop().add_signal_handler(number, _stopping, number, stop)
        runner.run(serve(begun.config, host, stop, source))
    log.info("stopped")
    return 0


def _stopping(number: int, stop: asyncio.Event) -> None:
    log.info("stopping", signal=signal.Signals(number).name)
    stop.set()
