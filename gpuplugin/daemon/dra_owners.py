"""Whose each GPU is, by the configuration in force, and what keeps it from its owner.

The configuration can give a GPU to claims while pods have it from the device plugin. Who has it only kubelet knows, and
it may still be giving it away: a list without the GPU takes a moment to reach it, and another device plugin may offer
it too. So such a GPU is given to no claim before kubelet has answered, counts it for no device plugin, and names no pod
that has it. Back to the device plugin it is simpler: what claims have is in our own records, or on its way there.

All of one event loop, and without I/O: each call gives what is so at that moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.model.holds import Hold, Holder, Owner
from gpuplugin.model.ids import without_replica
from gpuplugin.plan.ledger import Ledger, divide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpuplugin.config.settings import Dra
    from gpuplugin.daemon.node import Node
    from gpuplugin.model.ids import GpuUuid
    from gpuplugin.model.inventory import Inventory
    from gpuplugin.plan.ledger import Division
    from gpuplugin.serving.pod_resources import Allocatable, PodResources

NOT_ASKED = "kubelet has not said yet which pods have it from the device plugin"
ELSEWHERE = "it is handed out by the device plugin (dra.gpus does not name it)"


@dataclass(frozen=True, slots=True)
class Question:
    """What was so when kubelet was asked. turn: of the configuration · gpus: those of claims."""

    turn: int
    gpus: frozenset[GpuUuid]


class Owners:
    """Whose the GPUs are. records: what claims have, and are about to have, at this moment.

    pods: what kubelet said last that pods have from device plugins.
    """

    def __init__(self, node: Node, records: Callable[[], Ledger]) -> None:
        self._node, self._records = node, records
        self.pods = Ledger()
        self._said: tuple[Hold, ...] = ()
        self._for_claims, self._turn = node.config.dra, 0
        self._cleared: frozenset[GpuUuid] = frozenset()
        self._found_for: tuple[Inventory | None, Dra | None] = (None, None)
        self._found: frozenset[GpuUuid] = frozenset()
        self._offered: Mapping[GpuUuid, str] = {}

    def division(self, inventory: Inventory) -> Division:
        """Divide the GPUs, by the configuration that is in force at this moment."""
        of_claims = self._of_claims(inventory)
        return divide(inventory.gpus, lambda gpu: gpu.uuid in of_claims, self._records() + self.pods)

    def configured(self) -> bool:
        """Take over what the configuration says by now. True: it says another thing than at the last call.

        To be called before anybody acts upon it.
        """
        before, self._for_claims = self._for_claims, self._node.config.dra
        if before == self._for_claims:
            return False
        self._cleared &= self._of_claims()
        self._turn += 1
        return True

    @property
    def kept_back(self) -> dict[GpuUuid, str]:
        """GPUs that claims must not be given though they are theirs, until kubelet has said more, and why."""
        return {gpu: self._offered.get(gpu, NOT_ASKED) for gpu in self._of_claims() - self._cleared}

    @property
    def refused(self) -> dict[GpuUuid, str]:
        """GPUs that claims must not be given whatever the records say, and why."""
        inventory = self._node.inventory
        elsewhere = self.division(inventory).of(Owner.DEVICE_PLUGIN) if inventory else ()
        return {**dict.fromkeys(elsewhere, ELSEWHERE), **self.kept_back}

    @property
    def unsettled(self) -> bool:
        """Whether somebody still has a GPU by way of its former owner, as far as is known."""
        inventory = self._node.inventory
        return inventory is not None and bool(self.kept_back or self.division(inventory).withheld)

    def question(self) -> Question:
        """Begin to ask kubelet."""
        return Question(self._turn, self._of_claims())

    def take(self, question: Question, offered: Allocatable, found: PodResources) -> bool:
        """Take kubelet's answer over: what it could still give, asked first, and what pods have. True: that is news.

        A GPU that it could still give a moment ago is asked for once more: it may be about to tell of its pod. What a
        pod had is its own until two answers in a row do not have it: a kubelet that has just started knows few pods.
        """
        inventory = self._node.inventory
        if question.turn != self._turn or inventory is None:
            return False
        whose = {
            device: gpu.uuid for gpu in inventory.gpus for device in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices))
        }
        before = (self.pods, self._cleared, self._offered)
        not_yet = frozenset(self._offered)
        self._offered = {
            whose[uuid]: f"kubelet still counts it for a device plugin, as {resource}"
            for resource, device in offered.devices
            if (uuid := without_replica(device)[0]) in whose
        }
        said = tuple(_holds(found, whose))
        self.pods, self._said = Ledger(tuple(dict.fromkeys((*said, *self._said)))), said
        clear = question.gpus & self._of_claims() - not_yet
        self._cleared = (self._cleared | clear) - self._offered.keys()
        return before != (self.pods, self._cleared, self._offered)

    def _of_claims(self, inventory: Inventory | None = None) -> frozenset[GpuUuid]:
        """Give the GPUs of claims, in the newest inventory unless one is given; kept, as it is asked often."""
        inventory, dra = inventory or self._node.inventory, self._node.config.dra
        if inventory is not self._found_for[0] or dra is not self._found_for[1]:
            self._found_for = inventory, dra
            self._found = frozenset(gpu.uuid for gpu in (inventory.gpus if inventory else ()) if dra.includes(gpu))
        return self._found


def _holds(found: PodResources, whose: Mapping[str, GpuUuid]) -> Iterator[Hold]:
    for device in found.plugin_devices:
        uuid, _ = without_replica(device.id)
        if uuid in whose:
            yield Hold(whose[uuid], Holder(Owner.DEVICE_PLUGIN, device.namespace, device.pod))
