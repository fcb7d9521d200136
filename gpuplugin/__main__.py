"""The program's entry. It keeps daemon and command line apart, so that neither pays for the other's libraries."""

from __future__ import annotations

import gc
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon for ``run …``, the command line for anything else; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["run"]:
        gc.disable()  # imports leave no garbage to look for; the daemon turns it on when it runs
        # structlog imports rich wherever it is installed, for tracebacks that the daemon never writes: 260 ms and
        # 6 MiB. A None here makes that import fail, which structlog is prepared for.
        sys.modules["rich"] = None  # type: ignore[assignment]
        from gpuplugin.daemon.main import main as daemon  # noqa: PLC0415

        return daemon(given[1:])
    if given[:1] == ["mps-control"]:
        from gpuplugin.mps.keeper import keep  # noqa: PLC0415

        return keep(lambda: _mps_control(given[1:]))
    if len(given) == 1 and given[0] in {"alive", "ready"}:
        from gpuplugin.daemon.probe import main as probe  # noqa: PLC0415

        return probe(given[0])
    from gpuplugin.cli.app import main as command_line  # noqa: PLC0415

    try:
        return command_line(given)
    except KeyboardInterrupt:
        return INTERRUPTED


def _mps_control(arguments: Sequence[str]) -> int:
    sys.modules["rich"] = None  # type: ignore[assignment]  # as above
    from gpuplugin.daemon.mps_control import main as mps_control  # noqa: PLC0415

    return mps_control(arguments)


if __name__ == "__main__":
    sys.exit(main())
