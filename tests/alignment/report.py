"""Prints what `docs/alignment.md` has in its table: ``python -m tests.alignment.report [PODS] [MACHINE …]``."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

from tests.alignment.judge import POLICIES, SCOPES
from tests.alignment.run import Bench, Result, bench
from tests.gocheck.build import build

MACHINES = ("hgx-h100", "dgx-a100", "vm-flat", "dgx-1v", "a100-pcie-4")
VERDICTS = (
    "admitted",
    "admitted unaligned",
    "refused: short",
    "refused: no aligned place",
    "refused: earlier containers had the room",
)


def main() -> int:
    pods = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    program = build(Path(__file__).parents[1] / "gocheck/alignment")
    print("| machine | policy | scope |", " | ".join(VERDICTS), "| choices | pair sum | of any | s |")
    wrong = 0
    for machine in sys.argv[2:] or MACHINES:
        with bench(machine, program) as running:
            wrong += sum(_row(running, policy, scope, pods) for policy in POLICIES for scope in SCOPES)
    print(f"{wrong} disagreements")
    return 1 if wrong else 0


def _row(running: Bench, policy: str, scope: str, pods: int) -> int:
    result = running.run(policy, scope, pods)
    counts = " | ".join(str(result.tally.get(verdict, 0)) for verdict in VERDICTS)
    print(
        f"| {running.machine.name} | {policy} | {scope} | {counts} | {_quality(result)} | {result.seconds:.0f} |",
        flush=True,
    )
    for disagreement in result.disagreements:
        print(disagreement, file=sys.stderr)
    return len(result.disagreements)


def _quality(result: Result) -> str:
    if not result.choices:
        return "0 | - | -"
    chosen = fmean(each.chosen / each.best for each in result.choices)
    any_choice = fmean(each.mean / each.best for each in result.choices)
    return f"{len(result.choices)} | {chosen:.4f} | {any_choice:.3f}"


if __name__ == "__main__":
    sys.exit(main())
