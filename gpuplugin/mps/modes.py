"""Compute modes: a GPU that MPS serves takes no other process, and gets the mode back that it had before.

What it had is written down before it is changed, so that a crash in between loses nothing. A driver that is loaded anew
starts with its own modes, so a note of an earlier boot means nothing.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

import structlog

from gpuplugin.discovery.nvml import ComputeMode
from gpuplugin.errors import NvmlError
from gpuplugin.model.ids import GpuUuid

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from gpuplugin.discovery.nvml_thread import NvmlThread

log = structlog.get_logger()

BOOT_ID: Final = "sys/kernel/random/boot_id"


class ComputeModes:
    """Takes GPUs for MPS and gives them back. note: the file that remembers · proc: where /proc is."""

    def __init__(self, thread: NvmlThread, note: Path, proc: Path) -> None:
        self._thread, self._note = thread, note
        self._boot = (proc / BOOT_ID).read_text(encoding="ascii").strip() if (proc / BOOT_ID).exists() else ""
        self._before = self._read()
        self._troubles: dict[GpuUuid, str] = {}

    @property
    def taken(self) -> AbstractSet[GpuUuid]:
        """The GPUs that have not been given back."""
        return self._before.keys()

    async def take(self, gpus: Iterable[GpuUuid]) -> None:
        """Leave the GPUs to one process, the MPS server. Raises NvmlError, OSError."""
        nvml = self._thread.nvml
        for gpu in gpus:
            mode = await self._thread.call(nvml.compute_mode, gpu, gpu=gpu)
            if gpu not in self._before:
                self._before[gpu] = mode
                self._write()
            if mode is not ComputeMode.EXCLUSIVE_PROCESS:
                await self._thread.call(nvml.set_compute_mode, gpu, ComputeMode.EXCLUSIVE_PROCESS, gpu=gpu)
                log.info("compute mode", device=gpu, mode="EXCLUSIVE_PROCESS", before=mode.name)

    async def give_back(self, gpus: Iterable[GpuUuid]) -> None:
        """Give GPUs their modes back, unless somebody has set another meanwhile. What fails is tried next time."""
        for gpu in gpus:
            try:
                await self._give_back(gpu, self._before[gpu])
            except NvmlError as error:
                if self._troubles.get(gpu) != str(error):
                    log.warning("compute mode not restored yet", device=gpu, reason=str(error))
                self._troubles[gpu] = str(error)
            else:
                self._troubles.pop(gpu, None)
                del self._before[gpu]
                self._write()

    async def _give_back(self, gpu: GpuUuid, before: ComputeMode) -> None:
        nvml = self._thread.nvml
        mode = await self._thread.call(nvml.compute_mode, gpu, gpu=gpu)
        if mode is ComputeMode.EXCLUSIVE_PROCESS and before is not mode:
            await self._thread.call(nvml.set_compute_mode, gpu, before, gpu=gpu)
            log.info("compute mode", device=gpu, mode=before.name, before=mode.name)

    def _read(self) -> dict[GpuUuid, ComputeMode]:
        try:
            found = json.loads(self._note.read_bytes())
            if found["boot"] != self._boot:
                return {}
            return {GpuUuid(gpu): ComputeMode(mode) for gpu, mode in found["modes"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("the note of compute modes cannot be read", path=str(self._note), reason=str(error))
            return {}

    def _write(self) -> None:
        new = self._note.with_name(f".{self._note.name}")
        with new.open("w", encoding="utf-8") as file:
            json.dump({"boot": self._boot, "modes": self._before}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._note)
