"""What the API server says instead of an answer, as the errors that callers tell apart."""

from __future__ import annotations

import email.utils
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from gpuplugin.errors import (
    KubeConflict,
    KubeError,
    KubeForbidden,
    KubeGone,
    KubeInvalid,
    KubeNotFound,
    KubeUnavailable,
)
from gpuplugin.kube.objects import Object, Status

if TYPE_CHECKING:
    from gpuplugin.kube.kinds import Kind

T = TypeVar("T", bound=Object)

PASSING = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
"""Statuses of a server that is overloaded or on its way up or down: the same request may succeed soon."""

_NAMED = 200


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """What was asked of which kind, for decoding the answer and for the text of an error.

    name: with its namespace in front; empty for a list.
    """

    verb: str
    kind: Kind[T]
    name: str = ""
    subresource: str = ""

    @property
    def resource(self) -> str:
        """As RBAC has it: ``resourceclaims/status.resource.k8s.io`` for a subresource."""
        plural, dot, group = self.kind.resource.partition(".")
        return f"{plural}{f'/{self.subresource}' if self.subresource else ''}{dot}{group}"

    def unavailable(self, why: str) -> KubeUnavailable:
        """No answer that means anything."""
        return KubeUnavailable(self.verb, self.resource, self.name, why)

    def decoded(self, answer: bytes) -> T:
        """Give the object in an answer. A body that is none is a proxy's or half an answer: KubeUnavailable."""
        try:
            return msgspec.json.decode(answer, type=self.kind.type)
        except msgspec.DecodeError as error:
            raise self.unavailable(f"the answer makes no sense: {error}") from error

    def refused(self, status: int, said: Status) -> KubeError:
        """Say the error that an answer with this status is. A status nobody expects is taken to pass."""
        why = said.message or f"HTTP {status}"
        about = (self.verb, self.resource, self.name)
        match status:
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                return KubeForbidden(*about, status, why)
            case HTTPStatus.NOT_FOUND:
                return KubeNotFound(*about, why)
            case HTTPStatus.CONFLICT:
                return KubeConflict(*about, why, exists=said.reason == "AlreadyExists")
            case HTTPStatus.GONE:
                return KubeGone(*about, why)
            case HTTPStatus.BAD_REQUEST | HTTPStatus.UNPROCESSABLE_ENTITY | HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                return KubeInvalid(*about, why)
        return KubeUnavailable(*about, f"HTTP {status}: {why}")


def said_in(body: bytes) -> Status:
    """The Status in an error's body; its first characters where it is something else (a proxy's page)."""
    try:
        return msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError:
        return Status(message=body[:_NAMED].decode(errors="replace").strip())


def retry_after(header: str | None) -> float:
    """Seconds that a Retry-After header asks for; 0 where there is none, or none that makes sense."""
    if header is None:
        return 0.0
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return 0.0
