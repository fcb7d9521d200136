"""What the tests of the NVML double share: calls by way of pynvml, and calls that block."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml as n
import pytest

from gpuplugin.sim.host import SimulatedHost
from gpuplugin.sim.state import changed

Start = Callable[[str], SimulatedHost]
XID = n.nvmlEventTypeXidCriticalError


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(n.NVMLError) as caught:
        call()
    return int(caught.value.value)


def gpu(index: int) -> Any:
    return n.nvmlDeviceGetHandleByIndex(index)


def uuid(index: int) -> str:
    return str(n.nvmlDeviceGetUUID(gpu(index)))


def registered(*indexes: int) -> Any:
    events = n.nvmlEventSetCreate()
    for index in indexes:
        n.nvmlDeviceRegisterEvents(gpu(index), XID, events)
    return events


class Aside:
    """A call in a thread of its own; `done` when it has come back."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except n.NVMLError as error:
            self.error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> object:
        self._thread.join(30)
        assert self.done
        if self.error:
            raise self.error
        return self.result


def until_blocked(host: SimulatedHost) -> None:
    """Until a call waits for the state to change."""
    deadline = time.monotonic() + 30
    while not changed(host.state.path)._waiters:  # type: ignore[attr-defined]
        assert time.monotonic() < deadline, "nothing waits"
        time.sleep(0.001)


def elsewhere(path: Path, statement: str) -> None:
    program = (
        f"import sys, pathlib, gpuplugin.sim.state as s; state = s.State.open(pathlib.Path(sys.argv[1])); {statement}"
    )
    subprocess.run([sys.executable, "-c", program, path], check=True, timeout=60)
