"""Pieces of an SVG drawing: shapes and text as lines of XML, and the colours, light and dark.

Every rule is written out for both, without CSS variables, which few programs but browsers know.
"""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape, quoteattr

CHARACTER: Final = 0.6
"""A character's width, in parts of the font's size; a little more than most have, so that text stays in its box."""

_LIGHT: Final = {
    ".page": "fill:#ffffff",
    "text": "fill:#1b1b1a",
    ".muted": "fill:#5f5e5a",
    ".socket": "fill:#f4f3f0;stroke:#d3d1c9",
    ".switch": "fill:#ffffff;stroke:#b3b1a8",
    ".gpu": "fill:#e3effb;stroke:#2a6fb8",
    ".held": "fill:#2a6fb8;stroke:#2a6fb8",
    "text.on-held": "fill:#ffffff",
    ".fault": "fill:#fdecea;stroke:#b83227",
    ".nic": "fill:#f3ecfb;stroke:#7d4fc0",
    ".link": "fill:none;stroke:#2b8352",
    ".nvswitch": "fill:#dff2e6;stroke:#2b8352",
    "text.halo": "fill:#1b1b1a;stroke:#ffffff",
}
_DARK: Final = {
    ".page": "fill:#161615",
    "text": "fill:#eceae4",
    ".muted": "fill:#a9a79f",
    ".socket": "fill:#20201f;stroke:#3d3c39",
    ".switch": "fill:#2a2a28;stroke:#5b5a54",
    ".gpu": "fill:#17324d;stroke:#6aaef0",
    ".held": "fill:#2f74b8;stroke:#6aaef0",
    "text.on-held": "fill:#ffffff",
    ".fault": "fill:#471d19;stroke:#f08b7f",
    ".nic": "fill:#2e2440;stroke:#b08be8",
    ".link": "fill:none;stroke:#5cc48d",
    ".nvswitch": "fill:#173d29;stroke:#5cc48d",
    "text.halo": "fill:#eceae4;stroke:#161615",
}


def style() -> str:
    """The style sheet: light, and dark where the reader's system is."""
    fixed = [
        "text{font:12px system-ui,'DejaVu Sans',sans-serif}",
        ".strong{font-weight:600}",
        ".small{font-size:10.5px}",
        ".halo{paint-order:stroke;stroke-width:4}",
    ]
    light = [f"{name}{{{rule}}}" for name, rule in _LIGHT.items()]
    dark = [f"{name}{{{rule}}}" for name, rule in _DARK.items()]
    lines = [*fixed, *light, "@media (prefers-color-scheme:dark){", *dark, "}"]
    return "<style>\n" + "\n".join(lines) + "\n</style>"


def rect(kind: str, x: float, y: float, width: float, height: float, *, dashed: bool = False) -> str:
    """A box with round corners."""
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"{dash}/>'


def text(
    content: str, x: float, y: float, kind: str = "", *, width: float = 0, size: float = 12, middle: bool = False
) -> str:
    """Text with its baseline at `y`; with a `width`, cut to fit."""
    shown = fitting(content, width, size) if width else content
    anchor = ' text-anchor="middle"' if middle else ""
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:g}" y="{y:g}"{anchor}>{escape(_printable(shown))}</text>'


def fitting(content: str, width: float, size: float = 12) -> str:
    """As much of a text as fits, with an ellipsis where it is not all."""
    room = max(int(width / (size * CHARACTER)), 1)
    return content if len(content) <= room else f"{content[: room - 1].rstrip()}…"


def path(kind: str, along: str, thickness: float) -> str:
    """A line."""
    return f'<path class="{kind}" d="{along}" stroke-width="{thickness:g}"/>'


def group(title: str, *parts: str) -> list[str]:
    """Parts that belong together, with the words that a pointer over them, or a screen reader, gives."""
    return [f"<g><title>{escape(_printable(title))}</title>", *parts, "</g>"]


def document(width: float, height: float, title: str, description: str, parts: list[str]) -> str:
    """The whole drawing, as wide as the page allows."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label={quoteattr(_printable(title))}>'
    )
    said = [f"<title>{escape(_printable(title))}</title>", f"<desc>{escape(_printable(description))}</desc>"]
    page = f'<rect class="page" width="{width:g}" height="{height:g}"/>'
    return "\n".join([head, *said, style(), page, *parts, "</svg>"]) + "\n"


def _printable(content: str) -> str:
    """Leave out what no XML may have."""
    return "".join(c for c in content if c.isprintable())
