"""Longer and longer pauses, each by chance shorter, so that a thousand nodes do not come back in the same instant."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """first, longest: seconds. A pause is between half and all of its step; the step doubles up to `longest`."""

    first: float
    longest: float
    dice: random.Random = field(default_factory=random.SystemRandom, repr=False)
    _step: float = field(default=0.0, init=False)

    def next(self) -> float:
        """Give the pause to make now, and lengthen the next one."""
        self._step = min(max(self.first, self._step * 2), self.longest)
        return self._step * self.dice.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin with `first` again: it has worked."""
        self._step = 0.0
