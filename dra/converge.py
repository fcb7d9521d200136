"""One pass that makes the server's slices what they shall be, and finds out what the server does not keep.

Every pass starts from a list of its own, so neither a watch that lags nor a process that died in the middle leads it
astray. Fields that keep GPUs from being handed out wrongly are tried by a dry run before they are first relied on: a
server that drops them is never, not even for a moment, offered devices that need them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from dra.changes import Taken, bare, changes
from dra.gated import VITAL, dropped, used, without
from dra.limits import check
from dra.slices import cut
from gpuplugin.kube.kinds import SLICES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dra.changes import Changes
    from dra.slices import Contents, Owner
    from gpuplugin.kube.client import Kube
    from gpuplugin.kube.objects import ResourceSlice

_LONGEST_NAME = 253
_PROBE = "-probe"


class SliceApi(Protocol):
    """The API server, as far as one driver's slices of one node go. Every method may raise KubeError's kinds."""

    async def list(self) -> Sequence[ResourceSlice]:
        """All slices of this driver and node."""

    async def create(self, one: ResourceSlice, *, dry_run: bool = False) -> ResourceSlice:
        """Create one, or only hear what would become of it."""

    async def replace(self, one: ResourceSlice) -> ResourceSlice:
        """Replace the version that it names."""

    async def delete(self, one: ResourceSlice) -> None:
        """Delete that very one; that it is gone already is no error."""


@dataclass(frozen=True, slots=True)
class OnServer:
    """SliceApi on the real client."""

    kube: Kube
    fields: str

    async def list(self) -> Sequence[ResourceSlice]:
        """See SliceApi."""
        return (await self.kube.list(SLICES, fields=self.fields))[0]

    async def create(self, one: ResourceSlice, *, dry_run: bool = False) -> ResourceSlice:
        """See SliceApi."""
        return await self.kube.create(SLICES, one, dry_run=dry_run)

    async def replace(self, one: ResourceSlice) -> ResourceSlice:
        """See SliceApi."""
        return await self.kube.replace(SLICES, one)

    async def delete(self, one: ResourceSlice) -> None:
        """See SliceApi."""
        await self.kube.delete(SLICES, one.metadata.name, uid=one.metadata.uid)


@dataclass(slots=True)
class Memory:
    """What was learnt of the server; losing it costs a dry run, and a write where a policy changes what we write.

    lacks, proven: vital fields that it drops, and keeps · taken: what it made of ours, by slice · lost: other fields
    that it drops · generation: the highest that we have written.
    """

    lacks: set[str] = field(default_factory=set)
    proven: set[str] = field(default_factory=set)
    taken: dict[str, Taken] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    generation: int = 0

    def forget_server(self) -> None:
        """Take nothing for granted: it may be another by now, with other gates."""
        self.lacks.clear()
        self.proven.clear()
        self.lost.clear()

    def learn(self, written: ResourceSlice, answer: ResourceSlice) -> bool:
        """Compare an answer with what was written. True: a vital field was dropped that was relied on until now."""
        missing = dropped(written.spec, answer.spec)
        self.lost |= missing - VITAL
        new = missing & VITAL - self.lacks
        self.lacks |= new
        self.proven |= used(written.spec) - missing
        return bool(new)

    def wrote(self, written: ResourceSlice, answer: ResourceSlice) -> None:
        """Remember what became of a slice."""
        self.generation = max(self.generation, answer.spec.pool.generation)
        sent, kept = bare(written.spec), bare(answer.spec)
        if sent == kept:
            self.taken.pop(written.metadata.name, None)
        else:
            self.taken[written.metadata.name] = Taken(sent, kept)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is offered now. withdrawn: devices that cannot be on this server · dropped: fields that it does not keep."""

    offered: tuple[str, ...]
    withdrawn: tuple[str, ...]
    dropped: frozenset[str]


def needed(owner: Owner, driver: str, contents: Contents, there: Iterable[ResourceSlice], memory: Memory) -> Changes:
    """What would be written, as far as is known. Raises SlicesInvalid where what we want breaks the API's rules."""
    wanted = cut(owner, without(contents, memory.lacks), driver)
    check(wanted)
    return changes(wanted, there, memory.taken, memory.generation)


async def converge(api: SliceApi, owner: Owner, driver: str, contents: Contents, memory: Memory) -> Outcome:
    """Bring the server's slices to what is wanted. May be stopped anywhere, and called again.

    Raises KubeError's kinds and SlicesInvalid.
    """
    there = await api.list()
    while True:
        todo = needed(owner, driver, contents, there, memory)
        if await _finds_lacks(api, todo.writes, memory):
            continue
        if await _writes(api, todo.writes, memory):
            there = await api.list()
            continue
        for one in todo.deletes:
            await api.delete(one)
        offered = tuple(device.name for device in without(contents, memory.lacks).devices)
        withdrawn = tuple(device.name for device in contents.devices if device.name not in offered)
        return Outcome(offered, withdrawn, frozenset(memory.lacks | memory.lost))


async def _finds_lacks(api: SliceApi, writes: Iterable[ResourceSlice], memory: Memory) -> bool:
    for one in writes:
        if used(one.spec) - memory.proven:
            name = one.metadata.name[: _LONGEST_NAME - len(_PROBE)].rstrip("-.") + _PROBE
            meta = replace(one.metadata, name=name, uid="", resource_version="")
            probe = replace(one, metadata=meta)
            if memory.learn(probe, await api.create(probe, dry_run=True)):
                return True
    return False


async def _writes(api: SliceApi, writes: Iterable[ResourceSlice], memory: Memory) -> bool:
    """Write; True, and stop, where an answer shows that something else must be written."""
    for one in writes:
        answer = await (api.replace(one) if one.metadata.resource_version else api.create(one))
        memory.wrote(one, answer)
        if memory.learn(one, answer):
            return True
    return False
