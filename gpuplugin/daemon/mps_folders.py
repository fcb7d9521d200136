"""MPS control daemons that somebody else runs on this node, found by the pipes they have open.

They are not our children: an update of ours must not end the clients of theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuplugin.plan.mps import MpsNotReady

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.model.ids import ResourceName
    from gpuplugin.plan.mps import MpsGroup, MpsState

CONTROL = "control"
"""The pipe on which a control daemon takes commands; it is there for as long as the daemon is."""


class MpsFoldersOnHost:
    """Looks into the host's folder for MPS, which must be at the same path here."""

    async def ready(self, groups: tuple[MpsGroup, ...]) -> Mapping[ResourceName, MpsState]:
        """Say for each group whether a control daemon has its pipe open."""
        return {group.resource: _state(group) for group in groups}


def _state(group: MpsGroup) -> MpsState:
    pipe = group.folders.pipe
    if Path(pipe, CONTROL).exists():
        return group.folders
    return MpsNotReady(
        f"no MPS control daemon serves {group.resource}: {pipe}/{CONTROL} is not there; start one with "
        f"CUDA_MPS_PIPE_DIRECTORY={pipe} for {', '.join(group.gpus)}"
    )
