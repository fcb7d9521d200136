"""Quantities as Kubernetes writes them: ``4``, ``1500m``, ``64Gi``, ``1e3``."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_WRITTEN: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([numkMGTPE]?|[KMGTPE]i)|[eE]([+-]?\d{1,3}))")
_SUFFIX: Final = {
    **{name: Fraction(1, 10 ** (3 * place)) for place, name in enumerate("mun", 1)},
    **{name: Fraction(10 ** (3 * place)) for place, name in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    **{f"{name}i": Fraction(1024**place) for place, name in enumerate("KMGTPE", 1)},
}


def quantity(text: object) -> Fraction:
    """Give its value. Raises ValueError."""
    found = _WRITTEN.fullmatch(str(text).strip())
    if found is None:
        raise ValueError(f"{text!r} is no quantity; such are 4, 1500m, 64Gi")
    number, suffix, power = found.groups()
    return Fraction(number) * (_SUFFIX[suffix] if power is None else Fraction(10) ** int(power))


def whole(text: object) -> int:
    """Give its value where it is a whole number, rounded up elsewhere, as Kubernetes does. Raises ValueError."""
    return -(-quantity(text) // 1)
