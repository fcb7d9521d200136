"""The node's label chooses the configuration file: our own Node is watched, and the file is then read as a changed one.

Until the label is known, nothing is offered: slices where whole GPUs were meant would be handed out at once.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gpuplugin.config.profiles import NO_FILE, choose
from gpuplugin.errors import KubeUnconfigured, ProfileUnknown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from gpuplugin.config import Config
    from gpuplugin.config.settings import Profiles
    from gpuplugin.daemon.reload import ConfigSource
    from gpuplugin.errors import KubeError

log = structlog.get_logger()

PATIENCE_SECONDS = 15.0
"""How long the first answer is waited for; a node whose API server is away must get its GPUs back all the same."""


LOOK_SECONDS = 1.0
"""Between two looks whether a file that could not be chosen has come."""


class ProfileChoice:
    """Keeps `source` on the file that the label chooses. decided: set once there was something to choose by."""

    def __init__(self, profiles: Profiles, source: ConfigSource) -> None:
        self._profiles, self._source = profiles, source
        self._label = self._trouble = ""
        self.decided = asyncio.Event()

    def take(self, label: str) -> None:
        """Choose by this label, and have the file read; what cannot be chosen is told of and changes nothing."""
        self._label = label
        folder = Path(self._profiles.folder or "/")
        try:
            available = [entry.name for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith(".")]
            name = choose(label, available, self._profiles)
        except (ProfileUnknown, OSError) as error:
            if str(error) != self._trouble:
                log.error("no configuration chosen", reason=str(error))  # noqa: TRY400 - the reason is for people
            self._trouble = str(error)
        else:
            self._trouble = ""
            file = None if name == NO_FILE else folder / name
            if file != self._source.file or not self.decided.is_set():
                log.info("configuration chosen", label=label, file=file and str(file))
                self._source.file = file
                self._source.asked.set()
        self.decided.set()

    async def follow(self, labels: AsyncGenerator[str, None]) -> None:
        """Take each label; where none comes for a while, choose as if there were none, and go on listening.

        A label may come before the file that it names: what cannot be chosen is tried again until it can.
        """
        listening = asyncio.create_task(self._take_all(labels))
        try:
            await self._decide()
            while not (await asyncio.wait({listening}, timeout=LOOK_SECONDS))[0]:
                if self._trouble:
                    self.take(self._label)
            await listening
        finally:
            listening.cancel()
            await asyncio.wait({listening})

    async def _decide(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.decided.wait()
        except TimeoutError:
            log.warning("the node's label is not known yet: choosing without it", label=self._profiles.label)
            self.take("")

    async def _take_all(self, labels: AsyncGenerator[str, None]) -> None:
        try:
            async with aclosing(labels):
                async for label in labels:
                    self.take(label)
        except KubeUnconfigured as error:
            log.error("the node's label cannot be read", reason=str(error))  # noqa: TRY400 - as above
            self.take("")


async def node_labels(config: Config) -> AsyncGenerator[str, None]:
    """Give the label's value at first and with each change, "" where our Node has none. Raises KubeUnconfigured."""
    from gpuplugin.kube.client import Kube  # noqa: PLC0415 - costs 10 MiB, and few need it
    from gpuplugin.kube.kinds import NODES  # noqa: PLC0415 - likewise
    from gpuplugin.kube.watch import Follower  # noqa: PLC0415 - likewise

    name = config.node.name
    async with Kube(config.paths.kubeconfig_file) as kube:
        follower = Follower(kube, NODES, f"metadata.name={name}", _tell)
        async with aclosing(follower.follow()) as pictures:
            async for seen in pictures:
                node = seen.objects.get(name)
                labels: Mapping[str, str] = node.metadata.labels if node else {}
                yield labels.get(config.profiles.label, "")


def _tell(trouble: KubeError | None) -> None:
    if trouble:
        log.warning("the node's label cannot be followed: trying again", reason=str(trouble))
    else:
        log.info("the node's label is followed again")
