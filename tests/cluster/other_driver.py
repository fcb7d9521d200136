"""A stand-in for NVIDIA's DRA driver, that leaves on the node what that one was seen to leave; no code of it is here.

Seen of version 0.4.0: one ResourceSlice of an own name, `gpu-<minor>` for devices; a CDI document and a name in it for
each claim; a checkpoint in its plugin folder, which stays there with the documents when it ends; two sockets, which go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, Final

import grpc
from claims import DRIVER
from gpunode import CDI_FOLDER, READY_SECONDS, GpuNode
from onenode.api import Json
from onenode.layout import KUBELET_FOLDER, NODE

from gpuplugin.pb import dra_v1_pb2 as api
from gpuplugin.pb import dra_v1_pb2_grpc as rpc
from gpuplugin.pb import pluginregistration_v1_pb2 as registration
from gpuplugin.pb import pluginregistration_v1_pb2_grpc as registration_rpc
from tests.dra.leftovers import checkpoint, of_gpu, prepared

PLUGIN: Final = KUBELET_FOLDER / "plugins" / DRIVER
REGISTRY: Final = KUBELET_FOLDER / "plugins_registry"
CHECKPOINT: Final = PLUGIN / "checkpoint.json"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def document_of(uid: str) -> Path:
    """Its CDI document of a claim."""
    return CDI_FOLDER / f"k8s.{DRIVER}-claim_{uid}.yaml"


class OtherDriver(rpc.DRAPluginServicer, registration_rpc.RegistrationServicer):
    """Serves from its making to `stop`. names: what it calls each GPU, by index."""

    def __init__(self, node: GpuNode, names: Mapping[int, str]) -> None:
        self._node, self._api = node, node.cluster.api
        self._gpus = {names[gpu.index]: gpu for gpu in node.state.snapshot.gpus}
        self._prepared: Json = {}
        self._registered = Event()
        PLUGIN.mkdir(parents=True, exist_ok=True)
        self._write_checkpoint()
        self._service = self._serve(PLUGIN / "dra.sock", rpc.add_DRAPluginServicer_to_server)
        self._registrar = self._serve(
            REGISTRY / f"{DRIVER}-reg.sock", registration_rpc.add_RegistrationServicer_to_server
        )
        assert self._registered.wait(READY_SECONDS), "kubelet did not register it"  # else kubelet wipes its slices
        for one in self._api.list("ResourceSlice"):
            if one["spec"]["driver"] == DRIVER:
                self._api.delete("ResourceSlice", one["metadata"]["name"])
        self._api.apply(self._slice())

    def stop(self) -> None:
        """End as it does when its pod is deleted."""
        for server in (self._registrar, self._service):
            server.stop(None).wait()
        for path in (REGISTRY / f"{DRIVER}-reg.sock", PLUGIN / "dra.sock"):
            path.unlink(missing_ok=True)

    # -- what kubelet calls -------------------------------------------------

    def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:  # noqa: N802
        del request, context
        versions = ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        return registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(PLUGIN / "dra.sock"), supported_versions=versions
        )

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        if request.plugin_registered:
            self._registered.set()
        return registration.RegistrationStatusResponse()

    def NodePrepareResources(self, request: Any, context: Any) -> api.NodePrepareResourcesResponse:  # noqa: N802
        del context
        answer = api.NodePrepareResourcesResponse()
        for claim in request.claims:
            status = self._api.get("ResourceClaim", claim.name, namespace=claim.namespace)["status"]
            results = status["allocation"]["devices"]["results"]
            for result in results:
                answer.claims[claim.uid].devices.add(
                    request_names=[result["request"]],
                    pool_name=result["pool"],
                    device_name=result["device"],
                    cdi_device_ids=[f"k8s.{DRIVER}/claim={claim.uid}-{result['device']}"],
                )
            (pod,) = status["reservedFor"]
            devices = [result["device"] for result in results]
            document_of(claim.uid).write_text(json.dumps(self._document(claim.uid, devices)))
            given = [of_gpu(int(name[4:]), self._gpus[name].uuid, pool=NODE, uid=claim.uid) for name in devices]
            self._prepared[claim.uid] = prepared(*given, pod=pod["name"], pod_uid=pod["uid"])
            self._write_checkpoint()
        return answer

    def NodeUnprepareResources(self, request: Any, context: Any) -> api.NodeUnprepareResourcesResponse:  # noqa: N802
        del context
        answer = api.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid].SetInParent()
            document_of(claim.uid).unlink(missing_ok=True)
            self._prepared.pop(claim.uid, None)
            self._write_checkpoint()
        return answer

    # -- inside -------------------------------------------------------------

    def _serve(self, path: Path, add: Any) -> grpc.Server:
        path.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(2))
        add(self, server)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        return server

    def _write_checkpoint(self) -> None:
        CHECKPOINT.write_text(json.dumps(checkpoint(self._prepared, boot=BOOT_ID.read_text().strip())))

    def _document(self, uid: str, devices: list[str]) -> Json:
        dev = self._node.host.root / "dev"
        nodes = {name: f"nvidia{self._gpus[name].minor}" for name in devices}
        return {
            "cdiVersion": "0.5.0",
            "kind": f"k8s.{DRIVER}/claim",
            "devices": [
                {
                    "name": f"{uid}-{name}",
                    "containerEdits": {"deviceNodes": [{"path": f"/dev/{node}", "hostPath": str(dev / node)}]},
                }
                for name, node in nodes.items()
            ],
        }

    def _slice(self) -> Json:
        devices = [
            {
                "name": name,
                "attributes": {"type": {"string": "gpu"}, "uuid": {"string": gpu.uuid}},
                "capacity": {"memory": {"value": "80Gi"}},
            }
            for name, gpu in self._gpus.items()
        ]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{NODE}-{DRIVER}-x7k2p"},
            "spec": {
                "driver": DRIVER,
                "nodeName": NODE,
                "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }
