"""Which XIDs take a GPU out of service, once people's wishes are laid over the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpuplugin.model.xid import takes_gpu_away

if TYPE_CHECKING:
    from collections.abc import Iterable

ALL: Literal["all"] = "all"
"""Stands for every XID in `health.disable` and `health.enable`."""


@dataclass(frozen=True, slots=True)
class HealthChecks:
    """`enabled` wins over `disabled`; what neither names follows the catalogue. ``all`` in either names every XID."""

    disabled: frozenset[int | str] = frozenset()
    enabled: frozenset[int | str] = frozenset()

    @classmethod
    def of(cls, disable: Iterable[int | str], enable: Iterable[int | str]) -> HealthChecks:
        """Make them from the two lists as configured: XIDs and ``all``."""
        return cls(frozenset(disable), frozenset(enable))

    @property
    def off(self) -> bool:
        """Whether no XID at all can matter, so that none need be waited for."""
        return ALL in self.disabled and not self.enabled

    def handles(self, xid: int) -> bool:
        """Whether this XID takes its GPU out of service."""
        if ALL in self.enabled or xid in self.enabled:
            return True
        if ALL in self.disabled or xid in self.disabled:
            return False
        return takes_gpu_away(xid)
