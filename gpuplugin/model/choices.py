"""Choices of devices that were made lately, kept so that "why these?" can be answered once a pod runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for one container.

    at: seconds since 1970 · free: the devices of all GPUs that had some to give, replicas left aside.
    """

    at: float
    resource: str
    devices: tuple[str, ...]
    free: tuple[str, ...] = ()
