"""GPUs that an operator keeps out of service, each with the reason: a file each, in a folder of ours that outlives us.

Files, because a cordon must hold over restarts and updates, and be taken away also when no daemon runs. The command
line writes them and the daemon looks at the folder every second. A file that makes no sense still holds its GPU back:
somebody wanted that.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import structlog

from gpuplugin.durable import replace, sync_folder
from gpuplugin.errors import CordonRefused
from gpuplugin.model.ids import GpuUuid
from gpuplugin.serving.pace import next_beat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

log = structlog.get_logger()

LOOK_SECONDS: Final = 1.0
LONGEST_REASON: Final = 200
FOLDER = "cordons"
_FOLDER_MODE: Final = 0o700
_UUID = re.compile(r"(?i:GPU)-([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})")


@dataclass(frozen=True, slots=True)
class Cordon:
    """Why a GPU is kept out of service, and since when (ISO 8601; empty where that is not known)."""

    reason: str
    since: str = ""


def gpu_uuid(text: str) -> GpuUuid | None:
    """Bring a GPU's UUID to NVML's spelling; None where it is none."""
    match = _UUID.fullmatch(text)
    return GpuUuid(f"GPU-{match[1].lower()}") if match else None


class Cordons:
    """The cordons of this machine. state: the folder in which ours is, made for root alone when first needed."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER

    @property
    def stamp(self) -> tuple[tuple[str, int, int], ...]:
        """Something that differs when there is anything to read anew. Raises OSError where that cannot be seen."""
        found = []
        for path in self._files():
            with suppress(FileNotFoundError):  # taken away meanwhile
                status = path.stat()
                found.append((path.name, status.st_ino, status.st_mtime_ns))
        return tuple(found)

    def read(self) -> Mapping[GpuUuid, Cordon]:
        """Give all, by GPU. No folder: there are none. Raises OSError where it cannot be seen."""
        found = {}
        for path in self._files():
            if (gpu := gpu_uuid(path.stem)) is not None and (cordon := _read(path)) is not None:
                found[gpu] = cordon
        return found

    def _files(self) -> list[Path]:
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - Path.glob takes a folder that cannot be read for empty
        except FileNotFoundError:
            return []
        return [self._folder / name for name in sorted(names) if name.endswith(".json")]

    def put(self, gpu: GpuUuid, reason: str) -> Path:
        """Cordon a GPU, or change the reason; it is on disk when this returns. Raises CordonRefused."""
        reason = " ".join(reason.split())
        if not reason or len(reason) > LONGEST_REASON or not reason.isprintable():
            allowed = f"a line of 1 to {LONGEST_REASON} characters"
            raise CordonRefused(f"--reason: {reason!r} is not allowed; allowed: {allowed}")
        path = self._folder / f"{gpu}.json"
        since = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            self._folder.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            self._folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
            _close(self._folder)
            replace(path, f"{json.dumps({'gpu': gpu, 'reason': reason, 'since': since})}\n".encode(), 0o600)
            sync_folder(self._folder)
        except OSError as error:
            raise _unwritable(path, error) from error
        return path

    def take_away(self, gpu: GpuUuid) -> bool:
        """Let a GPU back into service; False where it was not cordoned. Raises CordonRefused."""
        path = self._folder / f"{gpu}.json"
        try:
            path.unlink()
            sync_folder(self._folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _unwritable(path, error) from error
        with suppress(OSError):  # another is cordoned
            self._folder.rmdir()
        return True


class CordonWatch:
    """Tells of the cordons when they have changed."""

    def __init__(self, cordons: Cordons, tell: Callable[[Mapping[GpuUuid, str]], object]) -> None:
        self._cordons, self._tell = cordons, tell
        self._seen: object = None
        self._trouble = ""

    def look(self) -> None:
        """Read them where anything has changed; while they cannot be read, what was told last holds."""
        try:
            stamp = self._cordons.stamp
            found = self._cordons.read() if stamp != self._seen else None
        except OSError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.error("it is not known which GPUs are cordoned: what held before holds", reason=self._trouble)  # noqa: TRY400 - for people
            return
        self._trouble = ""
        if found is not None:
            self._seen = stamp
            self._tell({gpu: cordon.reason for gpu, cordon in found.items()})

    async def keep_watching(self) -> None:
        """Look every second."""
        while True:
            await next_beat(LOOK_SECONDS)
            self.look()


def _close(folder: Path) -> None:
    """Leave it to its owner alone; so too the folder above, which kubelet makes open, where it has nothing else."""
    folder.chmod(_FOLDER_MODE)
    if [entry.name for entry in folder.parent.iterdir()] == [folder.name]:
        folder.parent.chmod(_FOLDER_MODE)


def _read(path: Path) -> Cordon | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return Cordon(str(values["reason"])[:LONGEST_REASON], str(values.get("since", "")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        log.error("a cordon makes no sense: it holds all the same", path=str(path), reason=str(error))  # noqa: TRY400
        return Cordon(f"{path} makes no sense; write it anew, or take it away, with gpuplugin cordon and uncordon")


def _unwritable(path: Path, error: OSError) -> CordonRefused:
    return CordonRefused(
        f"{path}: {error.strerror or error}; paths.state (GPUPLUGIN_PATHS_STATE) must name a folder that lasts and "
        "that this process may write, in a container one of the host's"
    )
