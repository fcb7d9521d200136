"""Being there for kubelet: a socket to serve on, and one beside it by which kubelet finds that out.

Kubelet looks into the folder of registrations by itself, so there is nothing to call; both sockets have names of their
own (see `serving.socket`), so a new instance of the daemon serves before the old one ends. What matters is that both
are there: they are looked at four times a second, and made again where somebody has removed them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from gpuplugin.errors import SocketError
from gpuplugin.pb import pluginregistration_v1_pb2 as api
from gpuplugin.pb import pluginregistration_v1_pb2_grpc as rpc
from gpuplugin.serving.pace import next_beat
from gpuplugin.serving.socket import ListeningSocket

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import grpc.aio

log = structlog.get_logger()

VERSIONS: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""In the order in which kubelet shall try them: it takes the first of each kind that it knows."""

LOOK_SECONDS: Final = 0.25


class _Registration(rpc.RegistrationServicer):
    def __init__(self, driver: str, endpoint: Callable[[], Path], told: Callable[[str | None], None]) -> None:
        self._driver, self._endpoint, self._told = driver, endpoint, told

    async def GetInfo(self, request: api.InfoRequest, context: Any) -> api.PluginInfo:
        del request, context
        return api.PluginInfo(
            type="DRAPlugin", name=self._driver, endpoint=str(self._endpoint()), supported_versions=VERSIONS
        )

    async def NotifyRegistrationStatus(
        self, request: api.RegistrationStatus, context: Any
    ) -> api.RegistrationStatusResponse:
        del context
        self._told(None if request.plugin_registered else request.error or "no reason given")
        return api.RegistrationStatusResponse()


class Registered:
    """One driver, served and kept findable until `run` is cancelled.

    folder: kubelet's, for plugins and their registrations · registered: is called each time kubelet has taken us.
    """

    def __init__(
        self,
        folder: Path,
        driver: str,
        add_services: Callable[[grpc.aio.Server], Any],
        registered: Callable[[], None] = lambda: None,
    ) -> None:
        self._driver, self._registered = driver, registered
        self._plugins = folder / "plugins" / driver
        self._service = ListeningSocket(self._plugins, "dra", add_services)
        servicer = _Registration(driver, lambda: self._service.path, self._heard)
        self._findable = ListeningSocket(
            folder / "plugins_registry", driver, lambda server: rpc.add_RegistrationServicer_to_server(servicer, server)
        )
        self.registered = False
        """Whether kubelet has taken us as we are now; that it has forgotten us is not told."""
        self.trouble = ""
        """What stood in the way last; empty once kubelet has taken us."""

    async def run(self) -> None:
        """Serve, and see to it that kubelet can find us."""
        try:
            while True:
                await self._look()
                await next_beat(LOOK_SECONDS)
        finally:
            await self._findable.close()  # first, so that kubelet hears that we go before it cannot reach us
            await self._service.close()

    async def _look(self) -> None:
        try:
            if self._service.lost() or self._findable.lost():
                self.registered = False
            if self._service.lost():
                await self._findable.close()  # it names the socket that was lost
                if self._plugins.parent.is_dir():  # kubelet's own, which it makes: without it, there is no kubelet
                    self._plugins.mkdir(mode=0o750, exist_ok=True)
                await self._service.open()
            if self._findable.lost():
                await self._findable.open()
        except (SocketError, OSError) as error:
            self._say(str(error))

    def _heard(self, refusal: str | None) -> None:
        if refusal is not None:
            self.registered = False
            self._say(f"kubelet refused: {refusal}")
            return
        self.registered, self.trouble = True, ""
        log.info("registered with kubelet", driver=self._driver, socket=str(self._service.path))
        self._registered()

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            log.warning("not registered", driver=self._driver, reason=trouble)
