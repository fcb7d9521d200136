"""What can go wrong with the test cluster itself, one class for each case that somebody catches.

ClusterError
├── MachineLacksError   the machine cannot have the cluster: the fixture skips, or fails in CI
├── BuildError          Go could not build a part
├── OccupiedError       the machine's place for a kubelet is somebody else's, or another session's
├── CommandError        a program that the cluster ran failed
├── NotInTimeError      a condition did not come true before its deadline
├── PodEndedError       a pod ended otherwise than it was waited for
└── ApiError            the API server said no
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onenode.machine import Missing


class ClusterError(Exception):
    """Any fault of the test cluster."""


class MachineLacksError(ClusterError):
    """The machine lacks something without which there is no cluster."""

    def __init__(self, missing: Sequence[Missing]) -> None:
        super().__init__("; ".join(f"{m.what} ({m.remedy})" for m in missing))
        self.missing = tuple(missing)


class BuildError(ClusterError):
    """A Go build failed; `output` is what it printed."""

    def __init__(self, part: str, output: str) -> None:
        super().__init__(f"building {part} failed:\n{output}")
        self.part = part
        self.output = output


class OccupiedError(ClusterError):
    """Another kubelet, or another session's cluster, has the place."""


class CommandError(ClusterError):
    """A program ended with `code`; `output` is its standard output and error."""

    def __init__(self, command: Sequence[str], code: int, output: str) -> None:
        super().__init__(f"{' '.join(command)} ended with {code}:\n{output}")
        self.command = tuple(command)
        self.code = code
        self.output = output


class NotInTimeError(ClusterError):
    """`what` did not come true within `seconds`: with the last falsy answer or exception, and the logs' tails."""

    def __init__(self, what: str, seconds: float, last: object, logs: Mapping[str, str]) -> None:
        tails = "".join(f"\n--- {name}\n{tail}" for name, tail in logs.items())
        super().__init__(f"{what}: not within {seconds:g} s; last seen: {last!r}{tails}")
        self.what = what
        self.seconds = seconds
        self.last = last
        self.logs = dict(logs)


class PodEndedError(ClusterError):
    """A pod came to its end, but not to a phase that was waited for; `pod` is its JSON, `log` what it printed."""

    def __init__(self, pod: dict[str, Any], log: str) -> None:
        status = pod["status"]
        why = f"{status.get('reason', '')} {status.get('message', '')}".strip()
        super().__init__(f"pod {pod['metadata']['name']} {status['phase']}: {why}\n{log}")
        self.pod = pod
        self.log = log


class ApiError(ClusterError):
    """The API server answered `status` (an HTTP status) with `reason` (for example `NotFound`)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
