"""Checkpoints as the reference's driver writes them, as far as anybody reads them."""

from __future__ import annotations

from typing import Any

from tests.dra.claims import POOL

Json = dict[str, Any]


def of_gpu(minor: int, uuid: str, *, pool: str = POOL, uid: str = "uid") -> Json:
    """A whole GPU."""
    return {"gpu": {"info": {"uuid": uuid}, "device": _device(f"gpu-{minor}", pool, uid)}, "mig": None}


def of_mig(name: str, parent: str, uuid: str, *, pool: str = POOL, uid: str = "uid") -> Json:
    """A MIG device, from version 25.12 on."""
    concrete = {"parentMinor": 0, "giId": 7, "ciId": 0, "migUUID": uuid, "parentUUID": parent}
    return {"gpu": None, "mig": {"concrete": concrete, "device": _device(name, pool, uid)}}


def of_mig_25(name: str, uuid: str, *, pool: str = POOL, uid: str = "uid") -> Json:
    """A MIG device, up to version 25.8: it does not say on which GPU."""
    return {"gpu": None, "mig": {"info": {"uuid": uuid}, "device": _device(name, pool, uid)}}


def prepared(*devices: Json, pod: str = "pod", pod_uid: str = "") -> Json:
    """A claim that a pod has; in this state the driver no longer keeps its name."""
    group = {"devices": list(devices), "configState": {"mpsControlDaemonID": ""}}
    reserved = [{"resource": "pods", "name": pod, "uid": pod_uid or f"uid-{pod}"}]
    return {
        "checkpointState": "PrepareCompleted",
        "status": {"allocation": {"devices": {"results": []}}, "reservedFor": reserved},
        "preparedDevices": [group],
    }


def started(name: str) -> Json:
    """A claim whose preparation was broken off."""
    return {"checkpointState": "PrepareStarted", "status": {}, "name": name, "namespace": "team"}


def checkpoint(claims: Json, *, boot: str | None, version: int = 2) -> Json:
    """The file. boot: the machine's boot id, which versions up to 25.12 do not write · version: of its format."""
    first = {
        uid: {key: claim[key] for key in ("status", "preparedDevices") if key in claim} for uid, claim in claims.items()
    }
    whole: Json = {"checksum": 1, "v1": {"preparedClaims": first}}
    if version > 1:
        whole["v2"] = {"checksum": 2, "preparedClaims": claims, **({"nodeBootID": boot} if boot else {})}
    return whole


def _device(name: str, pool: str, uid: str) -> Json:
    cdi = f"k8s.gpu.nvidia.com/claim={uid}-{name}"
    return {"Requests": ["gpus"], "PoolName": pool, "DeviceName": name, "CDIDeviceIDs": [cdi]}
