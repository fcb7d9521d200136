"""What the API server tells of this node and of a pod: one GET each, when somebody asks, and never otherwise."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuplugin.errors import KubeError, KubeUnconfigured, NothingToExplain
from gpuplugin.explain.node_object import NodeTold

if TYPE_CHECKING:
    from typing import TypeVar

    from gpuplugin.config import Config
    from gpuplugin.kube.kinds import Kind
    from gpuplugin.kube.objects import Node, Object

    T = TypeVar("T", bound=Object)

TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
PATIENCE_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 8.0


async def node_object(config: Config) -> NodeTold:
    """Ask for our Node. Raises NothingToExplain."""
    if not config.node.name:
        raise NothingToExplain("node.name is not set: the daemon does not know which Node it is on")
    _configured(config)
    from gpuplugin.kube.kinds import NODES  # noqa: PLC0415 - not where nobody asks

    return _told(await _get(config, NODES, config.node.name))


async def pod(config: Config, namespace: str, name: str) -> dict[str, Any]:
    """Ask for a Pod, as ``kubectl get pod -o json`` prints it. Raises NothingToExplain, also where there is none."""
    _configured(config)
    from gpuplugin.kube.kinds import PODS  # noqa: PLC0415 - likewise

    found = await _get(config, PODS, name, namespace)
    return {"kind": "Pod", **msgspec.to_builtins(found)}


def _configured(config: Config) -> None:
    """Look before the client is imported, which costs 10 MiB for good."""
    if not config.paths.kubeconfig and not TOKEN.exists():
        raise NothingToExplain(
            "the daemon has no access to the API server (no service account token, no paths.kubeconfig)"
        )


async def _get(config: Config, kind: Kind[T], name: str, namespace: str = "") -> T:
    from gpuplugin.kube.client import Kube  # noqa: PLC0415 - likewise

    try:
        async with asyncio.timeout(ANSWER_SECONDS), Kube(config.paths.kubeconfig_file) as kube:
            return await kube.get(kind, name, namespace=namespace, patience=PATIENCE_SECONDS)
    except (KubeUnconfigured, KubeError) as error:
        raise NothingToExplain(str(error)) from None
    except TimeoutError:
        raise NothingToExplain(f"the API server does not answer within {ANSWER_SECONDS:.0f} seconds") from None


def _told(node: Node) -> NodeTold:
    return NodeTold(
        node.metadata.name,
        node.spec.unschedulable,
        tuple((taint.key, taint.value, taint.effect) for taint in node.spec.taints),
        {each.type: (each.status, each.message or each.reason) for each in node.status.conditions},
        node.status.allocatable,
        node.metadata.labels,
    )
