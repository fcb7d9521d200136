"""How claims are served at this moment, for those who tell of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClaimsState:
    """wanted: whether claims may have GPUs, by the configuration in force.

    driver: under which name they are served, "" where they are not · registered: whether kubelet has taken that ·
    published: how many devices the scheduler was told of last, None before the first time · since_start: whether they
    were wanted when GPUs were first seen, and have been served since · unregistered, unpublished: why not.
    """

    wanted: bool = False
    driver: str = ""
    registered: bool = False
    published: int | None = None
    since_start: bool = False
    unregistered: str = ""
    unpublished: str = ""

    @property
    def can_be_had(self) -> bool:
        """Whether pods can get by claims what they shall get by claims."""
        return not self.wanted or (self.registered and self.published is not None)
