"""A stand-in for libnvidia-ml.so.1 as a Python object: what pynvml takes as ``pynvml.nvmlLib``.

pynvml's own wrappers then run as with the real library (references, versioned structs, buffer sizes, error codes), with
no compiler and no root. What is answered is in the state file, which this or any other process may change at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.sim import nvml_device_calls, nvml_event_calls, nvml_mig_calls, nvml_telemetry_calls
from gpuplugin.sim.abi import Code, Failed, number
from gpuplugin.sim.nvml_session import ALWAYS, CALLS, Look, Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuplugin.sim.machine import Machine


_FAMILIES = (nvml_device_calls, nvml_event_calls, nvml_mig_calls, nvml_telemetry_calls)
"""Imported for what they enter in CALLS."""


class NvmlDouble:
    """The library, for one state file; each object is a library of its own, with its own handles and fault counts.

    A function that the library does not have is an AttributeError, as with ctypes.CDLL. `machine` gives what the state
    file does not hold: PCI device ids (else 0), and GPUs' common ancestors (else not supported).
    """

    def __init__(self, state: Path, machine: Machine | None = None) -> None:
        self._session = Session(state, machine)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == "nvmlErrorString":
            function: Callable[..., Any] = _error_string
        elif name in CALLS:
            function = self._bind(name)
        else:
            raise AttributeError(f"undefined symbol: {name}")
        setattr(self, name, function)
        return function

    def _bind(self, name: str) -> Callable[..., int]:
        session, call, always = self._session, CALLS[name], name in ALWAYS

        def run(*arguments: Any) -> int:
            try:
                if not always and session.users <= 0:
                    return int(Code.UNINITIALIZED)
                call(Look(session, name, session.now()), *arguments)
            except Failed as failed:
                return int(failed.code)
            return int(Code.SUCCESS)

        return run


def _error_string(code: Any) -> bytes:
    try:
        name = Code(number(code)).name
    except ValueError:
        name = f"code {number(code)}"
    return name.replace("_", " ").capitalize().encode()
