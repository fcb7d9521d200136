"""What the reference's driver leaves on a node whose claims live on when we take over from it.

Its checkpoint says which claims it has prepared, with what: devices of kinds that we do not prepare among them, and
claims that are gone from the API server while their pods have not ended. Kubelet's pods and the API tell of neither.
Its CDI document of a claim is what a container of that claim is started with again, until kubelet has unprepared it.

Versions 25.3 to 0.4 are read. A checkpoint is of one boot: after another nothing of it is prepared any more.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from dra.checkpoint import COMPLETED, Record, RecordedDevice, RecordedPod
from dra.claim import sole
from gpuplugin.errors import CheckpointError
from gpuplugin.serving.socket import accepts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpuplugin.kube.objects import ResourceClaim
    from gpuplugin.model.ids import GpuUuid

CHECKPOINT: Final = "checkpoint.json"
UNKNOWN_NAME: Final = "unknown"
"""Namespace and name of a claim: the checkpoint has them while it is being prepared, and then no more."""

_ASIDE: Final = f"{CHECKPOINT}.taken-over"
_COMPLETED: Final = "PrepareCompleted"
_BOOT_ID: Final = "sys/kernel/random/boot_id"


class _Lenient(msgspec.Struct, frozen=True, rename="camel"):
    """Fields that we do not name are left aside."""


class _Given(msgspec.Struct, frozen=True, rename="pascal"):
    requests: tuple[str, ...] = ()
    pool_name: str = ""
    device_name: str = ""
    cdi_device_ids: tuple[str, ...] = msgspec.field(default=(), name="CDIDeviceIDs")


class _Info(_Lenient, frozen=True):
    uuid: str = ""
    parent_uuid: str = msgspec.field(default="", name="parentUUID")
    mig_uuid: str = msgspec.field(default="", name="migUUID")


class _One(_Lenient, frozen=True):
    """info, concrete: one of them, by version and kind of device."""

    device: _Given = _Given()
    info: _Info | None = None
    concrete: _Info | None = None


class _Device(_Lenient, frozen=True):
    gpu: _One | None = None
    mig: _One | None = None

    def recorded(self, whose: Mapping[str, GpuUuid]) -> RecordedDevice | None:
        """None for a GPU passed through to a virtual machine, which no driver of NVIDIA's holds."""
        one = self.gpu or self.mig
        if one is None:
            return None
        told, given = one.concrete or one.info or _Info(), one.device
        gpu = told.uuid if self.gpu else told.parent_uuid or whose.get(told.mig_uuid or told.uuid, "")
        request = given.requests[0].partition("/")[0] if given.requests else ""
        return RecordedDevice(request, given.pool_name, given.device_name, gpu, given.cdi_device_ids) if gpu else None


class _Group(_Lenient, frozen=True):
    devices: tuple[_Device, ...] | None = None


class _Pod(_Lenient, frozen=True):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _Status(_Lenient, frozen=True):
    reserved_for: tuple[_Pod, ...] = ()


class _Claim(_Lenient, frozen=True):
    checkpoint_state: str = _COMPLETED
    status: _Status = _Status()
    prepared_devices: tuple[_Group, ...] | None = None


class _Version(_Lenient, frozen=True):
    prepared_claims: dict[str, _Claim] = {}
    node_boot_id: str = msgspec.field(default="", name="nodeBootID")


class _File(_Lenient, frozen=True):
    v1: _Version | None = None
    v2: _Version | None = None


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The reference's driver, as it was on this node. Calls block on the disk.

    plugin: its folder below kubelet's · registry: where it registered · cdi: its documents · proc: of the machine.
    """

    driver: str
    plugin: Path
    registry: Path
    cdi: Path
    proc: Path

    def serves(self) -> Path | None:
        """The socket at which it registers with kubelet, if it is there still."""
        usual = self.registry / f"{self.driver}-reg.sock"
        return usual if accepts(usual) else None

    def prepared(self, whose: Mapping[str, GpuUuid]) -> tuple[Record, ...]:
        """The claims that it has prepared, without their names, see UNKNOWN_NAME; a MIG device holds its whole GPU.

        whose: the GPU of each MIG device, for versions up to 25.8 do not tell. Raises CheckpointError where the file
        makes no sense.
        """
        records = (_record(uid, claim, whose) for uid, claim in self._claims().items())
        return tuple(record for record in records if record.devices)

    def on_unnamed_gpus(self) -> tuple[str, ...]:
        """The MIG devices of which only a look at the machine tells whose they are. Raises CheckpointError."""
        groups = (group for claim in self._claims().values() for group in claim.prepared_devices or ())
        slices = (device.mig for group in groups for device in group.devices or () if not device.gpu)
        told = (one.concrete or one.info or _Info() for one in slices if one)
        return tuple(info.mig_uuid or info.uuid for info in told if not info.parent_uuid)

    def _claims(self) -> Mapping[str, _Claim]:
        path = self.plugin / CHECKPOINT
        try:
            file = msgspec.json.decode(path.read_bytes(), type=_File)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(path, f"the checkpoint of the driver before us makes no sense: {error}") from error
        newest = file.v2 or file.v1 or _Version()
        boot = self._boot_id()
        return {} if boot and newest.node_boot_id not in ("", boot) else newest.prepared_claims

    def put_aside(self) -> None:
        """Have it say nothing any more: from now on the claims are ours, and are given back without its knowing.

        Should that driver come back, it would refuse GPUs for ever that claims had which ended under us.
        """
        path = self.plugin / CHECKPOINT
        try:
            path.replace(path.with_name(_ASIDE))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise CheckpointError(path, f"cannot be moved to {_ASIDE}: {error.strerror or error}") from error

    def forget(self, uid: str) -> None:
        """Remove its CDI document of a claim that is over, if there is one and it can be; it is in nobody's way."""
        with suppress(OSError):
            (self.cdi / f"k8s.{self.driver}-claim_{uid}.yaml").unlink()

    def _boot_id(self) -> str:
        try:
            return (self.proc / _BOOT_ID).read_text().strip()
        except OSError:
            return ""


def named(record: Record, claim: ResourceClaim) -> Record:
    """Give a record the names that its claim has, and the pods that it is for now."""
    meta, pods = claim.metadata, (pod for pod in claim.status.reserved_for if pod.resource == "pods")
    now = {RecordedPod(f"{meta.namespace}/{pod.name}", pod.uid) for pod in pods}
    gone = {pod for pod in record.pods if pod.uid not in {one.uid for one in now}}
    everyone = tuple(sorted(now | gone, key=lambda pod: pod.name))
    return msgspec.structs.replace(record, namespace=meta.namespace, name=meta.name, pods=everyone, sole=sole(claim))


def _record(uid: str, claim: _Claim, whose: Mapping[str, GpuUuid]) -> Record:
    done = claim.checkpoint_state == _COMPLETED
    groups = (claim.prepared_devices or ()) if done else ()
    devices = (device.recorded(whose) for group in groups for device in group.devices or ())
    pods = tuple(
        RecordedPod(f"{UNKNOWN_NAME}/{pod.name}", pod.uid)
        for pod in claim.status.reserved_for
        if pod.resource == "pods"
    )
    found = tuple(device for device in devices if device is not None)
    return Record(uid, UNKNOWN_NAME, UNKNOWN_NAME, found, pods, COMPLETED)
