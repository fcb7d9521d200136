"""Stands between kubelet and a device plugin, and writes down every call that passes.

Towards the plugin it is a kubelet that takes registrations, towards kubelet it is the plugin; requests and answers go
through as they are. A call becomes the line that the stand-in kubelet's trace has for it, so that the two compare.
"""

# ruff: noqa: N802 - gRPC names the methods
from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import grpc

from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api
from gpuplugin.pb import deviceplugin_v1beta1_pb2_grpc as rpc

Call = dict[str, Any]


class Relay(rpc.RegistrationServicer, rpc.DevicePluginServicer):
    """Use it as a context. kubelet: the real one's registration socket · folder: where the plugin registers instead."""

    def __init__(self, kubelet: Path, folder: Path) -> None:
        self._kubelet, self._folder = kubelet, folder
        self._cleanup = ExitStack()
        self._plugin: Any = None
        self._resource = ""
        self.trace: list[Call] = []

    @property
    def socket(self) -> Path:
        """Where the plugin registers."""
        return self._folder / "kubelet.sock"

    def __enter__(self) -> Self:
        self._serve(self.socket, rpc.add_RegistrationServicer_to_server)
        return self

    def __exit__(self, *exception: object) -> None:
        self._cleanup.close()

    def Register(self, request: api.RegisterRequest, context: Any) -> api.Empty:
        self._resource = request.resource_name
        self._note("Register")
        self._plugin = rpc.DevicePluginStub(self._dial(self._folder / request.endpoint))
        endpoint = self._kubelet.with_name(f"relay-{request.endpoint}")
        self._serve(endpoint, rpc.add_DevicePluginServicer_to_server)
        request.endpoint = endpoint.name
        return rpc.RegistrationStub(self._dial(self._kubelet)).Register(request)

    def GetDevicePluginOptions(self, request: api.Empty, context: Any) -> api.DevicePluginOptions:
        answer = self._plugin.GetDevicePluginOptions(request)
        self._note(
            "GetDevicePluginOptions",
            preferred_allocation=answer.get_preferred_allocation_available,
            pre_start=answer.pre_start_required,
        )
        return answer

    def ListAndWatch(self, request: api.Empty, context: Any) -> Iterator[api.ListAndWatchResponse]:
        stream = self._plugin.ListAndWatch(request)
        context.add_callback(stream.cancel)
        try:
            for answer in stream:
                self._note(
                    "ListAndWatch",
                    healthy=sorted(device.ID for device in answer.devices if device.health == "Healthy"),
                    unhealthy=sorted(device.ID for device in answer.devices if device.health != "Healthy"),
                )
                yield answer
        except grpc.RpcError:
            return  # an end is an end, to kubelet too

    def GetPreferredAllocation(
        self, request: api.PreferredAllocationRequest, context: Any
    ) -> api.PreferredAllocationResponse:
        (wanted,) = request.container_requests
        answer = self._plugin.GetPreferredAllocation(request)
        self._note(
            "GetPreferredAllocation",
            available=sorted(wanted.available_deviceIDs),
            must_include=sorted(wanted.must_include_deviceIDs),
            size=wanted.allocation_size,
            answer=sorted(answer.container_responses[0].deviceIDs),
        )
        return answer

    def Allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        (wanted,) = request.container_requests
        self._note("Allocate", ids=sorted(wanted.devices_ids))
        return self._plugin.Allocate(request)

    def PreStartContainer(self, request: api.PreStartContainerRequest, context: Any) -> api.PreStartContainerResponse:
        self._note("PreStartContainer", ids=sorted(request.devices_ids))
        return self._plugin.PreStartContainer(request)

    def _note(self, call: str, **facts: object) -> None:
        self.trace.append({"call": call, "resource": self._resource, **facts})

    def _serve(self, path: Path, add: Any) -> None:
        server = grpc.server(ThreadPoolExecutor(4))
        add(self, server)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._cleanup.callback(lambda: server.stop(None).wait())

    def _dial(self, path: Path) -> grpc.Channel:
        return self._cleanup.enter_context(
            grpc.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)])
        )
