"""The cluster's programs and how each is called."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from onenode.layout import API_PORT, ETCD_PORT, HOST, NODE, Layout
from onenode.numa import overlay
from onenode.settings import ClusterSettings

NAMESPACE_MARK = "namespace-ready"


class Component(StrEnum):
    """A program of the cluster; the value is its name everywhere. In the order of their start."""

    ETCD = "etcd"
    API_SERVER = "kube-apiserver"
    NAMESPACE = "mount-namespace"
    """Holds the mount namespace that kubelet and containerd share: their mounts go when it does."""
    CONTAINERD = "containerd"
    KUBELET = "kubelet"
    CONTROLLERS = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"


INSIDE = frozenset({Component.CONTAINERD, Component.KUBELET})
"""The components that run in the node's mount namespace."""


def command(component: Component, binaries: Path, layout: Layout, settings: ClusterSettings) -> list[str]:
    """The program and its arguments."""
    match component:
        case Component.NAMESPACE:
            return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _namespace(layout, settings)]
        case Component.ETCD:
            flags = _etcd(layout)
        case Component.API_SERVER:
            flags = [*_api_server(layout, settings), *_gates(settings)]
        case Component.CONTAINERD:
            flags = [f"--config={layout.containerd_config}"]
        case Component.KUBELET:
            flags = [*_kubelet(layout), *_gates(settings)]
        case Component.CONTROLLERS:
            flags = [*_controllers(layout), *_gates(settings)]
        case Component.SCHEDULER:
            flags = [*_scheduler(layout), *_gates(settings)]
    return [str(binaries / component), *flags]


def _etcd(layout: Layout) -> list[str]:
    clients, peers = f"http://{HOST}:{ETCD_PORT}", f"http://{HOST}:{ETCD_PORT + 1}"
    return [
        f"--data-dir={layout.state / 'etcd'}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
    ]


def _api_server(layout: Layout, settings: ClusterSettings) -> list[str]:
    key = layout.service_account_key
    served = ["--runtime-config=" + _pairs(settings.api_versions)] if settings.api_versions else []
    return [
        f"--etcd-servers=http://{HOST}:{ETCD_PORT}",
        f"--bind-address={HOST}",
        f"--secure-port={API_PORT}",
        f"--cert-dir={layout.certificates}",
        f"--token-auth-file={layout.tokens}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--endpoint-reconciler-type=none",
        *served,
    ]


def _kubelet(layout: Layout) -> list[str]:
    return [
        f"--config={layout.kubelet_config}",
        f"--kubeconfig={layout.kubeconfig('node')}",
        f"--hostname-override={NODE}",
    ]


def _scheduler(layout: Layout) -> list[str]:
    return [
        f"--kubeconfig={layout.kubeconfig(Component.SCHEDULER)}",
        f"--bind-address={HOST}",
        "--leader-elect=false",
    ]


def _controllers(layout: Layout) -> list[str]:
    return [
        f"--kubeconfig={layout.kubeconfig(Component.CONTROLLERS)}",
        f"--bind-address={HOST}",
        "--leader-elect=false",
        "--node-monitor-period=1s",
        f"--service-account-private-key-file={layout.service_account_key}",
        f"--root-ca-file={layout.certificates / 'ca.crt'}",
    ]


def _namespace(layout: Layout, settings: ClusterSettings) -> str:
    mark = layout.run / NAMESPACE_MARK
    return f"mount --make-rshared /\n{overlay(settings.numa_nodes)}\ntouch {mark}\nexec sleep 2147483647"


def _gates(settings: ClusterSettings) -> list[str]:
    return [f"--feature-gates={_pairs(settings.feature_gates)}"] if settings.feature_gates else []


def _pairs(values: Mapping[str, bool]) -> str:
    return ",".join(f"{name}={str(value).lower()}" for name, value in values.items())
