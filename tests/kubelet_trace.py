"""What kubelet calls while pods come and go, for two tests that hold each other: the real one's, and the stand-in's.

It is recorded from the real kubelet (GPUPLUGIN_TEST_UPDATE_GOLDEN=1 with the cluster's test). The stand-in must call
the same for the same steps, or what is proven with it is proven of something that does not exist.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

RECORDED: Final = Path(__file__).parent / "golden" / "kubelet-trace.jsonl"

Call = dict[str, Any]


class Step(NamedTuple):
    """admit: a pod `name` of `count` GPUs starts · refuse: it does not · end: it goes · lose, restore: GPU `count`."""

    what: Literal["admit", "refuse", "end", "lose", "restore"]
    name: str = ""
    count: int = 0


SCENARIO: Final = (
    Step("admit", "one", 1),
    Step("admit", "two", 2),
    Step("admit", "four", 4),
    Step("end", "one"),
    Step("end", "two"),
    Step("end", "four"),
    Step("refuse", "five", 5),
    Step("lose", count=3),
    Step("admit", "three", 3),
    Step("restore", count=3),
    Step("admit", "last", 1),
)
"""On an HGX H100 with the policy single-numa-node."""


def recorded() -> list[Call]:
    """The real kubelet's calls, each as a StandInKubelet's trace has it."""
    return [json.loads(line) for line in RECORDED.read_text().splitlines()]


def record(trace: list[Call]) -> None:
    """Write them down."""
    RECORDED.write_text("".join(json.dumps(call, sort_keys=True) + "\n" for call in trace))
