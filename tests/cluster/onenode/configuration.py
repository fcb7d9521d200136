"""The files that kubelet and containerd are configured with: pure, from the layout and the settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onenode.layout import HOST, IMAGE, KUBELET_HEALTH_PORT, KUBELET_PORT, LINK, POD_NETWORK, Layout
from onenode.settings import KubeletSettings


def kubelet(layout: Layout, settings: KubeletSettings) -> str:
    """A KubeletConfiguration as JSON, which is YAML."""
    configuration: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": HOST,
        "port": KUBELET_PORT,
        "readOnlyPort": 0,
        "healthzBindAddress": HOST,
        "healthzPort": KUBELET_HEALTH_PORT,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "podLogsDir": str(layout.state / "pod-logs"),
        "resolvConf": "",
        "makeIPTablesUtilChains": False,
        "cpuManagerPolicy": settings.cpu_policy,
        "reservedSystemCPUs": settings.reserved_cpus,
        "topologyManagerPolicy": settings.topology_policy,
        "topologyManagerScope": settings.topology_scope,
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "nodeStatusUpdateFrequency": "500ms",
        "syncFrequency": "5s",
        "shutdownGracePeriod": "0s",
    }
    return json.dumps(_merged(configuration, settings.extra), indent=1)


def containerd(layout: Layout, cni_plugins: Path) -> str:
    """containerd's configuration, version 3."""
    state = layout.state
    return f"""\
version = 3
root = '{state}/containerd'
state = '{state}/containerd-state'
[grpc]
address = '{layout.containerd_socket}'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{IMAGE}'
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{cni_plugins}']
conf_dir = '{state}/cni'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins.'io.containerd.nri.v1.nri']
disable = true
[plugins.'io.containerd.internal.v1.opt']
path = '{state}/opt'
"""


def pod_network(layout: Layout) -> str:
    """A CNI network without a gateway: pods have addresses, and reach one another only."""
    addresses = {
        "type": "host-local",
        "dataDir": str(layout.state / "addresses"),
        "ranges": [[{"subnet": POD_NETWORK}]],
    }
    bridge = {"type": "bridge", "bridge": LINK, "ipMasq": False, "isGateway": False, "ipam": addresses}
    return json.dumps({"cniVersion": "1.0.0", "name": "test", "plugins": [bridge]}, indent=1)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[name] = _merged(below, value) if both else value  # type: ignore[arg-type]
    return merged
