"""``gpuplugin run``: from the command line to a running daemon, and out again.

Kubelet is registered with as early as can be: what is not needed for that is imported later.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

import gpuplugin
from gpuplugin.config import flags, load_with_sources
from gpuplugin.daemon import logs
from gpuplugin.errors import ConfigError, GpuPluginError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplugin.config import Config
    from gpuplugin.daemon.host import Host

log = structlog.get_logger()

USAGE_ERROR, FAILURE = 2, 1


def main(arguments: Sequence[str]) -> int:
    """Run until told to stop by SIGTERM or SIGINT; returns the process's exit status."""
    parser = argparse.ArgumentParser(
        prog="gpuplugin run", description="Offer this node's GPUs to kubelet.", allow_abbrev=False
    )
    parser.add_argument("--simulate", metavar="MACHINE", help="a simulated machine, by name or file, instead of NVML")
    parser.add_argument(
        "--simulate-folder", type=Path, metavar="DIR", help="where to put its files; default: a temporary folder"
    )
    flags.add_to(parser)
    namespace, rest = parser.parse_known_args(arguments)
    given = flags.collected(namespace, rest)
    try:
        loaded = load_with_sources(None, os.environ, given)
    except ConfigError as error:
        for problem in error.problems:
            print(f"gpuplugin: {problem}", file=sys.stderr)  # noqa: T201 - there is no log yet
        return USAGE_ERROR
    config = loaded.config
    logs.configure(config.log.level, config.log.format)
    log.info("starting", version=gpuplugin.__version__, file=loaded.file and str(loaded.file), set=dict(loaded.sources))
    with ExitStack() as cleanup:
        try:
            host = _host(config, namespace.simulate, namespace.simulate_folder, cleanup)
        except GpuPluginError as error:
            log.error("cannot start", reason=str(error))  # noqa: TRY400 - the reason is for people, the trace is not
            return FAILURE
        return _run(config, host, loaded.file, given)


def _host(config: Config, simulate: str | None, folder: Path | None, cleanup: ExitStack) -> Host:
    from gpuplugin.daemon import host  # noqa: PLC0415 - after the configuration, which may refuse

    if simulate is None:
        return host.real(config)
    if folder is None:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="gpuplugin-")))
    made = host.simulated(simulate, folder)
    log.info("simulating", machine=simulate, folder=str(folder))
    return made


def _run(config: Config, host: Host, file: Path | None, given: Mapping[str, str | Sequence[str]]) -> int:
    from gpuplugin.daemon.reload import ConfigSource  # noqa: PLC0415 - not for a configuration that is refused
    from gpuplugin.daemon.service import serve  # noqa: PLC0415 - likewise

    gc.freeze()  # what is imported stays, and is not to be searched again while a pod waits: 7 to 20 ms each time
    gc.enable()
    with asyncio.Runner() as runner:
        stop, source = asyncio.Event(), ConfigSource(file, os.environ, given)
        runner.get_loop().add_signal_handler(signal.SIGHUP, source.asked.set)
        runner.get_loop().add_signal_handler(signal.SIGUSR1, logs.toggle_debug)
        for number in (signal.SIGTERM, signal.SIGINT):
            runner.get_loop().add_signal_handler(number, _stopping, number, stop)
        runner.run(serve(config, host, stop, source))
    log.info("stopped")
    return 0


def _stopping(number: int, stop: asyncio.Event) -> None:
    log.info("stopping", signal=signal.Signals(number).name)
    stop.set()
