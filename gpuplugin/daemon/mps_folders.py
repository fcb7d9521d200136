"""MPS control daemons as this daemon sees them: by what is said of them in the folder for MPS, or by their pipes.

They are not our children: an update of ours must not end their clients. `gpuplugin mps-control` runs them, in a pod of
its own, and reports; where nobody reports, whoever has a pipe open there is trusted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuplugin.mps import report
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
        """Say for each group whether its control daemon is reported to be ready, or at least has its pipe open."""
        return {group.resource: _state(group) for group in groups}


def _state(group: MpsGroup) -> MpsState:
    if said := report.read(Path(group.root, group.resource)):
        return group.folders if said.ready else MpsNotReady(said.reason)
    pipe = group.folders.pipe
    if Path(pipe, CONTROL).exists():
        return group.folders
    return MpsNotReady(
        f"no MPS control daemon serves {group.resource}: {pipe}/{CONTROL} is not there; start one with "
        f"CUDA_MPS_PIPE_DIRECTORY={pipe} for {', '.join(group.gpus)}"
    )
