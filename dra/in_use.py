"""Whether pods of a claim may still run that the API server knows no more, by what kubelet leaves on the node.

Kubelet keeps a folder for each pod until nothing of it is left, also of one that was force-deleted, which its own APIs
name no more. The record says which pods the claim was prepared for. It was prepared once: pods that came to share it
later were not told of. So of a claim that can be shared, any pod that came after it may have it, unless it is known
not to. That holds devices back too long at worst, and only where kubelet has forgotten the claim, for it has every
claim unprepared once the last pod has ended.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from dra.checkpoint import Record

SLACK_SECONDS: Final = 60.0
"""How much the clock may have been set back between preparing a claim and the start of a pod that shares it."""


def may_still_run(pods: Path, record: Record, newcomers: Collection[str] = ()) -> str:
    """Say which pod of a claim may still run, empty where none may.

    pods: kubelet's folder of that name · newcomers: UIDs of pods that are only now being prepared with other claims, so
    that they cannot have one that is gone. Blocks on the disk for a stat of each folder at most.
    """
    if not record.pods:
        return "it is not known which pods it was prepared for"
    try:
        with os.scandir(pods) as entries:
            folders = {entry.name: entry.stat(follow_symlinks=False).st_ctime for entry in entries if entry.is_dir()}
    except OSError as error:
        return f"{pods} cannot be read: {error.strerror or error}"
    if left := [pod.name for pod in record.pods if pod.uid in folders]:
        return f"pod {' and '.join(left)} is not gone yet: kubelet still has a folder of it"
    if record.sole:
        return ""
    since = record.since - SLACK_SECONDS
    later = sorted(uid for uid, changed in folders.items() if uid not in newcomers and changed >= since)
    return f"pods came after it that may share it: kubelet still has a folder of {', '.join(later)}" if later else ""
