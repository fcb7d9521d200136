"""Every exception class that somebody catches, in one place, so that a reader sees at once what can go wrong.

::

    GpuPluginError
    ├── ConfigError               the configuration as a whole is refused; carries every Problem found
    ├── ProfileUnknown            no configuration file can be chosen for this node; the text says what there is
    ├── NvmlError                 an NVML call failed; carries call, code, name
    │   ├── NvmlUnavailable       no library, no driver, or the two do not match: keep trying
    │   ├── NvmlNotSupported      this GPU does not have that: the fact is None, nothing is wrong
    │   ├── GpuLost               the GPU is off the bus or needs a reset: only that GPU is affected
    │   └── NvmlHung              the call did not come back in time; its thread has been given up
    ├── SysfsError                a kernel file is missing or makes no sense; carries the path
    ├── ObserveError              a look at the machine failed as a whole: keep the last good inventory
    ├── MachineFileError          a simulated machine's file is wrong
    ├── MigRefused                a MIG change that the GPU cannot take; the text says what is possible
    ├── CdiError                  a CDI document could not be published
    │   ├── CdiInvalid            the document breaks rules of the specification; carries every Problem found
    │   └── CdiUnwritable         the document could not be put where runtimes look; carries the path
    ├── CdiRefused                what was asked of ``gpuplugin cdi`` cannot be done; the text says what can
    ├── RegistrationError         kubelet could not be reached or refused us
    ├── SocketError               our socket's folder is missing or not writable
    ├── KubeError                 the API server could not be asked, or said no; carries verb, resource and name
    │   ├── KubeUnavailable       no connection, no answer in time, or it is overloaded: try again later
    │   ├── KubeForbidden         our credentials do not allow it; the text has the rule that is missing
    │   ├── KubeNotFound          there is no such object
    │   ├── KubeConflict          the object is there already, or was changed since we read it: read it again
    │   ├── KubeInvalid           the object breaks the API's rules; trying again is of no use
    │   └── KubeGone              what we last saw is too old to go on from: list again
    ├── ClaimRefused              a claim is not prepared; the text reaches the pod's Event word for word
    │   ├── ClaimChanged          the claim is gone, is another by now, or is not allocated to this node
    │   ├── ParametersRefused     its configuration for our driver is wrong, or asks for what we cannot do
    │   ├── DeviceNotHere         a device that was allocated is unknown here, or cannot be given to a container
    │   └── DeviceHeld            a device is still in use by another; carries the claims that hold it
    ├── SlicesInvalid             what we would offer breaks the API's rules; carries every Problem found
    ├── PodResourcesUnavailable   kubelet does not say what its pods have; carries the socket
    ├── CollectorsInvalid         the list of what metrics to expose makes no sense; the text names its line
    ├── MetricsUnserved           metrics cannot be served as configured; the text names the setting or file
    ├── CheckpointError           the record of prepared claims cannot be read or written; carries the path
    ├── KubeUnconfigured          neither a service account nor a kubeconfig says where the API server is
    ├── RuntimeUnreachable        no container runtime answers at a CRI socket; carries the sockets tried
    ├── RuntimeConfigRefused      a runtime's configuration cannot be edited as it is; carries path and line
    ├── MpsControlFailed          the driver's MPS control program did not do as told; carries the command
    ├── CordonRefused             a GPU cannot be cordoned as asked; the text names the GPU, the reason or the file
    ├── NothingToExplain          nothing here has that name, or nobody can tell; the text says what there is
    │   └── DaemonSilent          the daemon of this node cannot be asked; the text says where it was looked for
    ├── ReportUnwritable          the file of a report cannot be written; the text names it
    ├── DemoFailed                a step of the demo did not come about; carries the step and the daemon's log
    └── AllocationError           a request of kubelet's that cannot be met; carries a gRPC-ready reason
        ├── UnknownDevice         the id is none of ours
        ├── DeviceUnavailable     the device is ours but cannot be used now; carries why
        └── UnsatisfiableRequest  a size or must-include list that no set of devices can meet
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class GpuPluginError(Exception):
    """Base of all: what is caught at the edges and shown to people as one line."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in the configuration, said so that it can be mended without reading code.

    source: where it was set (a file with its path, ``environment NAME``, ``flag --name``) · key: dotted path in the
    file (``flags.plugin.deviceListStrategy[0]``) · value: as given · allowed: what may stand there ·
    advice: what to do, when `allowed` alone does not say it.
    """

    source: str
    key: str
    value: object
    allowed: str
    advice: str = ""

    def __str__(self) -> str:
        text = f"{self.source}: {self.key or '(top)'}: {self.value!r} is not allowed; allowed: {self.allowed}"
        return f"{text}. {self.advice}" if self.advice else text


class ConfigError(GpuPluginError):
    """The configuration is refused. All problems are reported at once, so that one round of mending is enough."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class ProfileUnknown(GpuPluginError):
    """The node's label, or what counts without one, names no configuration file that there is."""


class NvmlError(GpuPluginError):
    """An NVML call failed: `call` (C name), `code` (nvmlReturn_t), `name` (its text)."""

    def __init__(self, call: str, code: int, name: str) -> None:
        self.call, self.code, self.name = call, code, name
        super().__init__(f"{call}: {name} (NVML code {code})")


class NvmlUnavailable(NvmlError):
    """NVML cannot be used at all yet: library not found, driver not loaded, or library and driver differ."""


class NvmlNotSupported(NvmlError):
    """The GPU or the driver does not have what was asked for."""


class GpuLost(NvmlError):
    """The GPU has fallen off the bus or must be reset before it answers again."""


class NvmlHung(NvmlError):
    """A call did not come back within its deadline."""

    def __init__(self, call: str, seconds: float) -> None:
        super().__init__(call, -1, f"no answer within {seconds:g} s")


class SysfsError(GpuPluginError):
    """A file under /sys or /proc is missing, unreadable, or does not parse."""

    def __init__(self, path: Path, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path}: {why}")


class ObserveError(GpuPluginError):
    """The machine could not be looked at. Never to be read as "there are no GPUs"."""


class MachineFileError(GpuPluginError):
    """A simulated machine's file is missing or wrong; the text names file, key and what is allowed."""


class MigRefused(GpuPluginError):
    """A MIG change that the GPU cannot take: no such profile, no room there, or MIG is off. Nothing was changed."""


class CdiError(GpuPluginError):
    """A CDI document could not be published: what was there before still holds."""


class CdiInvalid(CdiError):
    """The document breaks rules of the CDI specification; runtimes would refuse the whole file. All are reported."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class CdiUnwritable(CdiError):
    """The document could not be written to `path`; the text says why and what to do."""

    def __init__(self, path: Path, why: str, advice: str) -> None:
        self.path = path
        super().__init__(f"{path}: {why}; {advice}")


class CdiRefused(GpuPluginError):
    """A wish about CDI documents that cannot be met; the text names the option or thing, and what to do."""


class RegistrationError(GpuPluginError):
    """Kubelet did not take our registration; the text says whether it was unreachable or refused, and why."""


class SocketError(GpuPluginError):
    """The folder for our socket cannot be used; the text names it and what to do."""


class KubeError(GpuPluginError):
    """A call of the Kubernetes API failed.

    verb: as in RBAC (``get``, ``create``) · resource: ``resourceslices.resource.k8s.io`` · name: the object, with its
    namespace in front where it has one; empty for a list.
    """

    def __init__(self, verb: str, resource: str, name: str, why: str) -> None:
        self.verb, self.resource, self.name, self.why = verb, resource, name, why
        super().__init__(f"{verb} {resource}{f' {name}' if name else ''}: {why}")


class KubeUnavailable(KubeError):
    """The API server does not answer, or not now. Nothing is known of what became of a write."""


class KubeForbidden(KubeError):
    """The API server does not let us. `status` is 401 (it does not know us) or 403 (it knows us, and refuses)."""

    def __init__(self, verb: str, resource: str, name: str, status: int, why: str) -> None:
        self.status = status
        kind, _, group = resource.partition(".")
        advice = (
            "the token or certificate is not accepted: look at the service account"
            if status == 401  # noqa: PLR2004 - HTTP's own number
            else f"needed is an RBAC rule with apiGroups [{group!r}], resources [{kind!r}], verbs [{verb!r}], and an "
            "admission policy that lets it pass"
        )
        super().__init__(verb, resource, name, f"{why}; {advice}")


class KubeNotFound(KubeError):
    """There is no such object."""


class KubeConflict(KubeError):
    """Somebody was faster. `exists`: the object to create is there already; else it has changed since it was read."""

    def __init__(self, verb: str, resource: str, name: str, why: str, *, exists: bool) -> None:
        self.exists = exists
        super().__init__(verb, resource, name, why)


class KubeInvalid(KubeError):
    """The API server refuses the object or the request as wrong; `why` has its list of what is."""


class KubeGone(KubeError):
    """The version to go on from is no longer kept: only a new list helps."""


class SlicesInvalid(GpuPluginError):
    """ResourceSlices that the API server or the scheduler would not take: a fault of ours, found before it is sent."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class KubeUnconfigured(GpuPluginError):
    """Nothing says where the API server is and who we are; the text says what was looked at."""


class RuntimeUnreachable(GpuPluginError):
    """No container runtime answers at any of `sockets`; the text says why and what to do."""

    def __init__(self, sockets: Iterable[Path], why: str, advice: str) -> None:
        self.sockets = tuple(sockets)
        super().__init__(f"{', '.join(map(str, self.sockets))}: {why}; {advice}")


class RuntimeConfigRefused(GpuPluginError):
    """A container runtime's configuration is not touched. `line` counts from 1; None where no line is at fault."""

    def __init__(self, path: Path, why: str, advice: str, line: int | None = None) -> None:
        self.path, self.line = path, line
        super().__init__(f"{path}{f':{line}' if line else ''}: {why}; nothing was changed. {advice}")


class ClaimRefused(GpuPluginError):
    """A claim is not prepared: its pod waits, and kubelet tries again. The text says what has to happen first."""


class ClaimChanged(ClaimRefused):
    """What the API server has under the claim's name is not what kubelet asks for."""


class ParametersRefused(ClaimRefused):
    """The claim or its class has parameters for our driver that cannot be followed; trying again is of no use."""


class DeviceNotHere(ClaimRefused):
    """A device of the claim cannot be given to a container now. `device`: its name in the pool."""

    def __init__(self, device: str, why: str) -> None:
        self.device = device
        super().__init__(f"device {device}: {why}")


class DeviceHeld(ClaimRefused):
    """Devices of the claim are in use. `claims`: UIDs of the claims that hold some; pods are in the text alone."""

    def __init__(self, held: Iterable[str], claims: Iterable[str]) -> None:
        self.claims = tuple(claims)
        super().__init__(f"{'; '.join(held)}. The pod starts by itself once that has ended")


class PodResourcesUnavailable(GpuPluginError):
    """Kubelet could not be asked, at `socket`, which pods have which devices."""

    def __init__(self, socket: Path, why: str) -> None:
        self.socket = socket
        super().__init__(f"{socket}: {why}; kubelet answers there when it runs and its folder is mounted here")


class CollectorsInvalid(GpuPluginError):
    """The list of what metrics to expose cannot be read; the text names file and line, and what is allowed."""


class MetricsUnserved(GpuPluginError):
    """Metrics cannot be served: the address, the certificate or the list of users is not usable."""


class CheckpointError(GpuPluginError):
    """The record of prepared claims cannot be used; nothing is prepared until it can. `path`: the file or folder."""

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        super().__init__(f"{path}: {why}")


class MpsControlFailed(GpuPluginError):
    """nvidia-cuda-mps-control could not be run, or said no. `command`: what it was told."""

    def __init__(self, command: str, why: str) -> None:
        self.command = command
        super().__init__(f"{command}: {why}")


class CordonRefused(GpuPluginError):
    """A wish to take a GPU out of service, or let it back, that cannot be met; the text says what can be."""


class NothingToExplain(GpuPluginError):
    """What `gpuplugin explain` was asked cannot be answered; the text says why, and what there is."""


class DaemonSilent(NothingToExplain):
    """No daemon can be asked from here: its socket is not named, or does not answer."""


class ReportUnwritable(GpuPluginError):
    """The file of `gpuplugin report` cannot be written; the text names it, and says why."""


class DemoFailed(GpuPluginError):
    """A step of the demo did not come about. `tail`: the last lines of the daemon's log, which say why."""

    def __init__(self, step: str, why: str, tail: str) -> None:
        self.step, self.tail = step, tail
        super().__init__(f"the demo stopped at: {step}: {why}; above is the end of the daemon's log")


class AllocationError(GpuPluginError):
    """A request of kubelet's that we refuse; the text reaches the pod's Event word for word."""


class UnknownDevice(AllocationError):
    """A device id that this resource does not have."""

    def __init__(self, resource: str, device: str) -> None:
        self.resource, self.device = resource, device
        super().__init__(f"{resource} has no device {device!r}: it is gone, or belongs to another resource")


class DeviceUnavailable(AllocationError):
    """A device of ours that must not be handed out now."""

    def __init__(self, resource: str, device: str, why: str) -> None:
        self.resource, self.device, self.why = resource, device, why
        super().__init__(f"{resource} device {device} cannot be used: {why}")


class UnsatisfiableRequest(AllocationError):
    """No set of devices fits: more asked than there are, or more must be included than are asked for."""
