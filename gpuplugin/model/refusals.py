"""What kubelet was refused lately, kept so that it can be told when somebody asks for the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """One call that was answered with an error.

    at: seconds since 1970, the last time where it came again · operation: as in the log's lines · call: ``Allocate``,
    ``prepare`` · of: the resource, or the claim with its namespace.
    """

    at: float
    operation: int
    call: str
    of: str
    reason: str
