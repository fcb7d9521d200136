"""The calls we make of the API server: typed, each with a deadline and, while it makes sense, another try.

Everything we write can be sent twice: creates have names that follow from what they are, replacements name the version
they replace, and patches say all of what they set. So a write whose answer was lost is repeated, and the caller sees a
KubeConflict at worst.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import httpx2 as httpx
import msgspec

from gpuplugin.errors import KubeConflict, KubeGone, KubeNotFound
from gpuplugin.kube.backoff import Backoff
from gpuplugin.kube.connection import CONNECT_SECONDS, READ_SECONDS, TROUBLE, http
from gpuplugin.kube.kinds import CLAIMS, NODES, Kind
from gpuplugin.kube.objects import ListMeta, Object
from gpuplugin.kube.refusals import PASSING, Call, retry_after, said_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from gpuplugin.kube.objects import AllocatedDeviceStatus, Node, ResourceClaim

T = TypeVar("T", bound=Object)
Form = Literal["json", "json-patch+json", "merge-patch+json", "apply-patch+yaml"]

PATIENCE_SECONDS = 20.0
FIELD_MANAGER = "gpuplugin"
_PAGE = 500


class Page(Object, frozen=True):
    """One page of a list; items are decoded by kind."""

    metadata: ListMeta = ListMeta()
    items: tuple[msgspec.Raw, ...] | None = None


class Kube:
    """A client of one API server, for one event loop; `async with` closes it.

    Each call raises KubeError's kinds, KubeUnavailable only after `patience` seconds of trying (0: one try). `calls`
    counts the HTTP requests sent, by method, for metrics and tests.
    """

    def __init__(
        self,
        kubeconfig: Path | None = None,
        *,
        patience: float = PATIENCE_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """kubeconfig: None inside a pod · transport: stands in for the network. Raises KubeUnconfigured."""
        self._http = http(kubeconfig, transport)
        self._patience = patience
        self.calls: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections; watches in progress end."""
        await self._http.aclose()

    # -- what we ask most ---------------------------------------------------

    async def node(self, name: str) -> Node:
        """Give the Node, for its UID."""
        return await self.get(NODES, name)

    async def set_node_condition(self, name: str, condition: Mapping[str, str]) -> Node:
        """Set one condition of a Node's status, as a field of ours; conditions of others stay as they are."""
        body = {"apiVersion": NODES.api_version, "kind": NODES.name, "status": {"conditions": [condition]}}
        return await self.apply(NODES, name, body, subresource="status")

    async def claim(self, namespace: str, name: str, *, patience: float | None = None) -> ResourceClaim:
        """Give the claim of that name, which need not be the one with the UID that is wanted: compare it."""
        return await self.get(CLAIMS, name, namespace=namespace, patience=patience)

    async def claims(self, keep: Callable[[ResourceClaim], bool] | None = None) -> tuple[ResourceClaim, ...]:
        """List the claims of the cluster, page by page. keep: those to remember, for there may be very many."""
        return (await self.list(CLAIMS, keep=keep))[0]

    async def set_claim_devices(
        self, claim: ResourceClaim, devices: Sequence[AllocatedDeviceStatus], *, patience: float | None = None
    ) -> ResourceClaim:
        """Say in `status.devices` what is so of our devices, by server-side apply; devices of others stay as they are.

        Devices that an earlier call named and this one does not are taken away. KubeConflict when the claim's UID is
        another by now.
        """
        body = {
            "apiVersion": CLAIMS.api_version,
            "kind": CLAIMS.name,
            "metadata": {"uid": claim.metadata.uid},
            "status": {"devices": msgspec.to_builtins(devices)},
        }
        return await self.apply(
            CLAIMS,
            claim.metadata.name,
            body,
            namespace=claim.metadata.namespace,
            subresource="status",
            patience=patience,
        )

    # -- any kind -----------------------------------------------------------

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "", patience: float | None = None) -> T:
        """One object. KubeNotFound when there is none."""
        call = Call("get", kind, _name(namespace, name))
        return call.decoded(await self._ask(call, "GET", kind.path(namespace, name), patience=patience))

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str = "",
        fields: str = "",
        keep: Callable[[T], bool] | None = None,
        patience: float | None = None,
    ) -> tuple[tuple[T, ...], str]:
        """All objects that match a field selector, page by page, and the resourceVersion to watch from.

        keep: of those, the ones to give.
        """
        call = Call("list", kind)
        selected = {"fieldSelector": fields} if fields else {}
        query = selected | {"limit": str(_PAGE)}
        found: list[T] = []
        while True:
            try:
                answer = await self._ask(call, "GET", kind.path(namespace), query=query, patience=patience)
            except KubeGone:
                if "continue" not in query:
                    raise
                found, query = [], selected  # the pages took too long: all in one, then
                continue
            page = _page(call, answer)
            found += filter(keep or _all, map(call.decoded, page.items or ()))
            if not page.metadata.continue_:
                return tuple(found), page.metadata.resource_version
            query = {**query, "continue": page.metadata.continue_}

    async def create(self, kind: Kind[T], wanted: T, *, dry_run: bool = False, patience: float | None = None) -> T:
        """Create an object and give it as the server has it. KubeConflict with `exists` when the name is taken."""
        namespace, name = _where(wanted)
        call = Call("create", kind, _name(namespace, name))
        body = _with_type(kind, wanted)
        answer = await self._ask(
            call, "POST", kind.path(namespace), body=body, query=_writing(dry_run=dry_run), patience=patience
        )
        return call.decoded(answer)

    async def replace(self, kind: Kind[T], wanted: T, *, patience: float | None = None) -> T:
        """Put an object in the place of the version that its resourceVersion names. KubeConflict, KubeNotFound."""
        namespace, name = _where(wanted)
        call = Call("update", kind, _name(namespace, name))
        body = _with_type(kind, wanted)
        path = kind.path(namespace, name)
        return call.decoded(await self._ask(call, "PUT", path, body=body, query=_writing(), patience=patience))

    async def delete(
        self, kind: Kind[T], name: str, *, namespace: str = "", uid: str = "", patience: float | None = None
    ) -> bool:
        """Delete an object, if `uid` is given only that very one. False: it was gone already (or is another by now)."""
        call = Call("delete", kind, _name(namespace, name))
        body = {"preconditions": {"uid": uid}} if uid else None
        try:
            await self._ask(call, "DELETE", kind.path(namespace, name), body=body, patience=patience)
        except (KubeNotFound, KubeConflict):
            return False
        return True

    async def apply(
        self,
        kind: Kind[T],
        name: str,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
        manager: str = FIELD_MANAGER,
        patience: float | None = None,
    ) -> T:
        """Server-side apply: we own exactly the fields in `body`, and take them from whoever has them.

        manager: in whose name; two parts that own different fields of one object need a name each.
        """
        call = Call("patch", kind, _name(namespace, name), subresource)
        path = kind.path(namespace, name, subresource)
        query = {"fieldManager": manager, "force": "true"}
        answer = await self._ask(
            call, "PATCH", path, body=body, query=query, form="apply-patch+yaml", patience=patience
        )
        return call.decoded(answer)

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        namespace: str = "",
        patience: float | None = None,
    ) -> T:
        """Make a JSON Patch, all of its operations or none. KubeInvalid where one cannot be, such as a failed test."""
        call = Call("patch", kind, _name(namespace, name))
        path = kind.path(namespace, name)
        answer = await self._ask(
            call, "PATCH", path, body=operations, query=_writing(), form="json-patch+json", patience=patience
        )
        return call.decoded(answer)

    # -- below --------------------------------------------------------------

    async def lines(self, kind: Kind[T], query: Mapping[str, str], *, lifetime: float) -> AsyncGenerator[bytes, None]:
        """Give the lines of one watch as they come, until the server ends it. Raises KubeError's kinds at once.

        lifetime: seconds after which the connection is given up as dead, whatever it did until then.
        """
        call = Call("watch", kind)
        loop = asyncio.get_running_loop()
        end = loop.time() + lifetime
        timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS, read=None)
        request = self._http.build_request("GET", kind.path(), params={**query, "watch": "true"}, timeout=timeout)
        try:
            async with asyncio.timeout(READ_SECONDS):
                answer = await self._send(request, stream=True)
            try:
                if answer.status_code != httpx.codes.OK:
                    async with asyncio.timeout(READ_SECONDS):
                        raise call.refused(answer.status_code, said_in(await answer.aread()))
                chunks, rest = answer.aiter_bytes(), b""
                while True:
                    async with asyncio.timeout_at(end):
                        chunk = await anext(chunks, b"")
                    if not chunk:
                        return
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        yield line
            finally:
                await answer.aclose()
        except TROUBLE as error:
            raise call.unavailable(_reason(error)) from error

    async def _ask(
        self,
        call: Call[Any],
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        query: Mapping[str, str] | None = None,
        form: Form = "json",
        patience: float | None = None,
    ) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if content is None else {"Content-Type": f"application/{form}"}
        loop = asyncio.get_running_loop()
        end = loop.time() + (self._patience if patience is None else patience)
        pauses = Backoff(0.1, 5.0)
        while True:
            request = self._http.build_request(method, path, params=query, content=content, headers=headers)
            pause, trouble = 0.0, ""
            try:
                async with asyncio.timeout(READ_SECONDS):
                    answer = await self._send(request)
            except TROUBLE as error:
                trouble = _reason(error)
            else:
                if answer.is_success:
                    return answer.content
                refusal = call.refused(answer.status_code, said_in(answer.content))
                if answer.status_code not in PASSING:
                    raise refusal
                trouble, pause = refusal.why, retry_after(answer.headers.get("Retry-After"))
            pause = max(pause, pauses.next())
            if loop.time() + pause > end:
                raise call.unavailable(trouble)
            await asyncio.sleep(pause)

    async def _send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        self.calls[request.method] = self.calls.get(request.method, 0) + 1
        return await self._http.send(request, stream=stream)


def _all(_: object) -> bool:
    return True


def _page(call: Call[Any], answer: bytes) -> Page:
    try:
        return msgspec.json.decode(answer, type=Page)
    except msgspec.DecodeError as error:
        raise call.unavailable(f"the answer makes no sense: {error}") from error


def _where(wanted: Any) -> tuple[str, str]:
    return wanted.metadata.namespace, wanted.metadata.name


def _name(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _with_type(kind: Kind[Any], wanted: Object) -> dict[str, Any]:
    return {"apiVersion": kind.api_version, "kind": kind.name, **msgspec.to_builtins(wanted)}


def _writing(*, dry_run: bool = False) -> dict[str, str]:
    return {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__
