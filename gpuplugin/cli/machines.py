"""``gpuplugin machines``: what there is to simulate."""

from __future__ import annotations

from collections import Counter

from gpuplugin.cli.output import Cell, Page
from gpuplugin.sim import machine


def show() -> None:
    """Print each machine's name, its GPUs, and what it is."""
    page = Page()
    rows = []
    for name in machine.names():
        loaded = machine.load(name)
        models = Counter(gpu.record.name for gpu in loaded.gpus)
        gpus = ", ".join(f"{count} {model}" for model, count in models.items())
        rows.append((Cell(name, "bold"), gpus, " ".join(loaded.about.split())))
    page.table(("name", "GPUs", "what it is"), rows)
    page.show()
