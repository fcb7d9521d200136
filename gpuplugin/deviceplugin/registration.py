"""Telling kubelet of a resource, and telling it again whenever it must have forgotten.

Kubelet forgets at a restart: its socket is a new one, and it has deleted ours. Both are looked at four times a second.
A stat costs a microsecond or two, works where inotify is exhausted or a folder is mounted over, and leaves nothing to
fall back to.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import structlog

from gpuplugin.deviceplugin.server import DevicePlugin, options
from gpuplugin.errors import RegistrationError, SocketError
from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api
from gpuplugin.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from gpuplugin.serving.pace import next_beat
from gpuplugin.serving.socket import Identity, ListeningSocket, identity

if TYPE_CHECKING:
    from pathlib import Path

    from gpuplugin.model.ids import ResourceName

log = structlog.get_logger()

API_VERSION = "v1beta1"
LOOK_SECONDS = 0.25
REGISTER_SECONDS = 5.0
UNWATCHED_SECONDS = 3.0
DROPPED_SECONDS = 0.5
"""A kubelet up to 1.36 drops a new instance's stream when that of the one before ends, and then has no device."""
LONGEST_PAUSE_SECONDS = 30.0


async def register(kubelet: Path, endpoint: str, resource: ResourceName) -> None:
    """Register once. Raises RegistrationError: kubelet does not answer, or says no."""
    request = api.RegisterRequest(version=API_VERSION, endpoint=endpoint, resource_name=resource, options=options())
    async with grpc.aio.insecure_channel(f"unix:{kubelet}") as channel:
        try:
            await rpc.RegistrationStub(channel).Register(request, timeout=REGISTER_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise RegistrationError(f"kubelet at {kubelet}: {error.code().name}: {error.details()}") from None


class Registered:
    """One resource, served and kept registered until `run` is cancelled.

    kubelet: its registration socket; ours is put beside it.
    """

    def __init__(self, kubelet: Path, resource: ResourceName, plugin: DevicePlugin) -> None:
        self.resource, self.plugin = resource, plugin
        self._kubelet = kubelet
        self._socket = ListeningSocket(
            kubelet.parent,
            resource.rpartition("/")[2],
            lambda server: rpc.add_DevicePluginServicer_to_server(plugin, server),
        )
        self._registered_with: Identity | None = None
        self._unwatched_since = 0.0
        self._pause = UNWATCHED_SECONDS
        self._trouble = ""

    @property
    def registered(self) -> bool:
        """Whether the kubelet that is there now has taken our registration."""
        return self._registered_with is not None

    @property
    def trouble(self) -> str:
        """What stood in the way last; "" after a registration."""
        return self._trouble

    async def run(self) -> None:
        """Serve, register, and do so again whenever needed."""
        try:
            while True:
                await self._look()
                await next_beat(LOOK_SECONDS)
        finally:
            await self._socket.close()

    async def _look(self) -> None:
        kubelet = identity(self._kubelet)
        try:
            if self._socket.lost():
                self._registered_with = None
                await self._socket.open()
            if kubelet is None:
                self._registered_with = None
                self._say(f"{self._kubelet} is not there: waiting for kubelet")
            elif kubelet != self._registered_with or self._forgotten():
                await register(self._kubelet, self._socket.path.name, self.resource)
                self._registered_with, self._unwatched_since = kubelet, time.monotonic()
                self._trouble = ""
                log.info("registered with kubelet", resource=self.resource, socket=str(self._socket.path))
        except (SocketError, RegistrationError) as error:
            self._registered_with = None
            self._say(str(error))

    def _forgotten(self) -> bool:
        """Whether kubelet took the registration but has not been watching for a while, with a growing patience.

        It is not forgetful when a later instance serves the same resource: kubelet has turned to that one.
        """
        now = time.monotonic()
        if self.plugin.offers.followers:
            self._unwatched_since, self._pause = now, DROPPED_SECONDS
            return False
        if now - self._unwatched_since < self._pause:
            return False
        if newer := self._socket.newer():
            self._say(f"a later instance serves this resource at {newer}")
            return False
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)
        log.warning("kubelet does not watch: registering again", resource=self.resource)
        return True

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("not registered", resource=self.resource, reason=trouble)
