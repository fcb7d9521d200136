"""The ends of NVLinks, numbered per GPU, from how many there are between whom."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuplugin.sim.schema import NvlinkForm, wrong
from gpuplugin.sim.snapshot import LinkRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_LINKS = 18
"""NVML_NVLINK_MAX_LINKS."""
TO_GPU, TO_SWITCH = 0, 2


def link_records(file: Path, form: NvlinkForm, bus_ids: Sequence[str]) -> tuple[LinkRecord, ...]:
    """Give every end, by GPU and link number. MachineFileError where GPUs do not exist or have too many links."""
    ends: list[list[LinkRecord]] = [[] for _ in bus_ids]

    def add(gpu: int, count: int, remote_type: int, remote: str | None) -> None:
        for _ in range(count):
            ends[gpu].append(LinkRecord(gpu, len(ends[gpu]), True, remote_type, remote))  # noqa: FBT003 (a record)

    for key, rows, both_ways in (("direct", form.direct, True), ("one_way", form.one_way, False)):
        for number, (a, b, count) in enumerate(rows):
            if a == b or max(a, b) >= len(bus_ids):
                allowed = f"two different GPUs of 0 to {len(bus_ids) - 1}, and a count"
                raise wrong(file, f"nvlink.{key}[{number}]", [a, b, count], allowed)
            add(a, count, TO_GPU, bus_ids[b])
            add(b, count if both_ways else 0, TO_GPU, bus_ids[a])
    for gpu in range(len(bus_ids)):
        add(gpu, form.switched, TO_SWITCH, None)
        if len(ends[gpu]) > MAX_LINKS:
            raise wrong(file, "nvlink", len(ends[gpu]), f"at most {MAX_LINKS} links a GPU; this is GPU {gpu}")
    _take_down(file, form, ends)
    return tuple(end for links in ends for end in links)


def _take_down(file: Path, form: NvlinkForm, ends: list[list[LinkRecord]]) -> None:
    for number, (gpu, link) in enumerate(form.down):
        if gpu >= len(ends) or link >= len(ends[gpu]):
            raise wrong(file, f"nvlink.down[{number}]", [gpu, link], "a GPU, and the number of one of its links")
        ends[gpu][link] = replace(ends[gpu][link], active=False)
