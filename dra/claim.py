"""A claim as we need it: what of it is ours, on this node, for whom; or why it cannot be prepared.

The claim is read from the API server each time. That it has the UID kubelet asks for is checked here, before anything
else is done with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from gpuplugin.errors import ClaimChanged, ParametersRefused
from gpuplugin.model.holds import Use

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuplugin.kube.objects import AllocatedDevice, AllocationConfiguration, ResourceClaim

PARAMETERS_VERSION = "resource.nvidia.com/v1beta1"


@dataclass(frozen=True, slots=True)
class ClaimName:
    """Which claim kubelet means."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (UID {self.uid})"


@dataclass(frozen=True, slots=True)
class GrantedDevice:
    """One device of ours that the scheduler gave to a claim.

    request: the request's own name, without that of an alternative in it (``gpus`` of ``gpus/large``) · share: which
    share of a device that several claims have, if it is one.
    """

    request: str
    pool: str
    device: str
    share: str | None
    use: Use


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """A claim with its devices of our driver on this node.

    pods: for whom, as (namespace/name, UID) · sole: see the function.
    """

    name: ClaimName
    devices: tuple[GrantedDevice, ...]
    pods: tuple[tuple[str, str], ...]
    sole: bool = False


def allocated(
    claim: ResourceClaim, wanted: ClaimName, driver: str, pool: str, *, follow: bool = True
) -> AllocatedClaim:
    """Read a claim. Raises ClaimChanged and ParametersRefused, each with what is wrong.

    pool: ours, on this node · follow: whether its parameters are to be followed, or it has its devices already.
    """
    if claim.metadata.uid != wanted.uid:
        raise ClaimChanged(f"claim {wanted}: the API server has another of that name, with UID {claim.metadata.uid}")
    allocation = claim.status.allocation
    if allocation is None:
        raise ClaimChanged(f"claim {wanted}: it is not allocated (any more)")
    ours = [result for result in allocation.devices.results if result.driver == driver]
    if not ours:
        raise ClaimChanged(f"claim {wanted}: none of its devices is of driver {driver}")
    elsewhere = sorted({result.pool for result in ours} - {pool})
    if elsewhere:
        raise ClaimChanged(f"claim {wanted}: its devices are in pool {', '.join(elsewhere)}; this node's is {pool}")
    if follow:
        refuse_parameters(allocation.devices.config, driver)
    namespace = claim.metadata.namespace
    pods = tuple((f"{namespace}/{pod.name}", pod.uid) for pod in claim.status.reserved_for if pod.resource == "pods")
    return AllocatedClaim(wanted, tuple(map(_granted, ours)), pods, sole(claim))


def sole(claim: ResourceClaim) -> bool:
    """Whether a claim was made for one pod, from a template or an extended resource, and ends with it.

    One that people have made, or that is a PodGroup's, may be shared at any time by pods that come later.
    """
    return any(owner.kind == "Pod" and owner.controller for owner in claim.metadata.owner_references)


def devices_from(claim: ResourceClaim, driver: str, pool: str) -> frozenset[str]:
    """Names of the devices of that pool that a claim is allocated, whether or not it is prepared."""
    allocation = claim.status.allocation
    return frozenset(
        result.device
        for result in (allocation.devices.results if allocation else ())
        if (result.driver, result.pool) == (driver, pool)
    )


def _granted(result: AllocatedDevice) -> GrantedDevice:
    use = Use.WATCHED if result.admin_access else Use.SHARED if result.share_id else Use.EXCLUSIVE
    return GrantedDevice(result.request.partition("/")[0], result.pool, result.device, result.share_id, use)


class _Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """GpuConfig of the reference's driver, as far as it changes nothing: a whole GPU for one claim alone."""

    api_version: Literal["resource.nvidia.com/v1beta1"]
    kind: Literal["GpuConfig"]


def refuse_parameters(configurations: Iterable[AllocationConfiguration], driver: str) -> None:
    """Raise ParametersRefused unless all parameters for our driver are such that they can be followed."""
    for configuration in configurations:
        opaque = configuration.opaque
        if opaque is None or opaque.driver != driver:
            continue
        try:
            msgspec.json.decode(opaque.parameters, type=_Parameters)
        except msgspec.DecodeError as error:
            source = "device class" if configuration.source == "FromClass" else "claim"
            raise ParametersRefused(
                f"parameters in the {source} for {driver}: {error}; allowed is kind GpuConfig of {PARAMETERS_VERSION} "
                "with nothing in it: GPUs are not shared between claims by this version"
            ) from error
