"""Writes the Grafana dashboard, the Prometheus rules and the tables of docs/metrics.md from the registry of series.

All three are committed, so this runs only when a series, an alert or a panel changes:

    python monitoring/generate.py             # rewrites the files
    python monitoring/generate.py --out DIR   # writes them below DIR instead, which is how the drift test looks
"""

# ruff: noqa: INP001  (a script beside its output, no package)
from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from dashboard import dashboard
from queries import ALERTS, RECORDINGS

from gpuplugin.metrics import registry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuplugin.metrics.series import Series

ROOT = Path(__file__).resolve().parents[1]
DASHBOARD, RULES = Path("monitoring/gpuplugin-dashboard.json"), Path("monitoring/gpuplugin-rules.yaml")
DOCUMENT = Path("docs/metrics.md")
_SECTION = r"(<!-- {name}: written by monitoring/generate.py -->\n).*?(<!-- end -->)"


def rules() -> dict[str, Any]:
    """Give recording rules and alerts as Prometheus reads them."""
    return {
        "groups": [
            {
                "name": "gpuplugin-recordings",
                "rules": [{"record": one.name, "expr": one.query} for one in RECORDINGS],
            },
            {
                "name": "gpuplugin-alerts",
                "rules": [
                    {
                        "alert": one.name,
                        "expr": one.query,
                        "for": one.lasts,
                        "labels": {"severity": one.severity},
                        "annotations": {"summary": one.summary, "runbook": one.runbook},
                    }
                    for one in ALERTS
                ],
            },
        ]
    }


def documented(text: str) -> str:
    """Fill the tables of the document in."""
    tables = {
        "device series": _series(registry.DEVICE_SERIES),
        "own series": _series(registry.OWN_SERIES),
        "recordings": _table(("series", "what it is"), ((f"`{one.name}`", one.about) for one in RECORDINGS)),
        "alerts": _table(
            ("alert", "severity", "when", "what to do"),
            ((one.name, one.severity, _plain(one.summary), one.runbook) for one in ALERTS),
        ),
    }
    for name, table in tables.items():
        found = re.search(_SECTION.format(name=name), text, re.DOTALL)
        if found is None:
            raise SystemExit(f"{DOCUMENT} has no section for the table {name!r}")
        text = f"{text[: found.start()]}{found[1]}{table}{found[2]}{text[found.end() :]}"
    return text


def _series(series: Iterable[Series]) -> str:
    return _table(("series", "type", "what it is"), ((f"`{one.name}`", f"{one.kind}", one.help) for one in series))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _plain(summary: str) -> str:
    """Show what Prometheus fills in as a word."""
    return re.sub(r"\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}", r"*\1*", summary)


def generate(out: Path) -> None:
    """Write the three files below `out`."""
    written = {
        DASHBOARD: json.dumps(dashboard(), indent=2) + "\n",
        RULES: "# Written by monitoring/generate.py.\n" + yaml.safe_dump(rules(), sort_keys=False, width=120),
        DOCUMENT: documented((ROOT / DOCUMENT).read_text(encoding="utf-8")),
    }
    for path, text in written.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT, metavar="DIR", help="default: the checkout")
    generate(parser.parse_args().out)
