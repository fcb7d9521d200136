"""What a test may choose about the cluster; everything else is fixed.

The two classes are split by what a change costs: `KubeletSettings` a restart of the kubelet, `ClusterSettings` a new
cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

TopologyPolicy = Literal["none", "best-effort", "restricted", "single-numa-node"]
TopologyScope = Literal["container", "pod"]
CpuPolicy = Literal["none", "static"]


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class KubeletSettings:
    """A kubelet's policies. `extra` is merged over its KubeletConfiguration, in that kind's own words."""

    topology_policy: TopologyPolicy = "single-numa-node"
    topology_scope: TopologyScope = "container"
    cpu_policy: CpuPolicy = "static"
    reserved_cpus: str = "0"
    extra: Mapping[str, Any] = field(default_factory=_nothing)


@dataclass(frozen=True)
class ClusterSettings:
    """The cluster at its start.

    numa_nodes     how many NUMA nodes the kubelet is shown; 0 shows it the machine's own
    feature_gates  for every component of Kubernetes
    api_versions   what the API server serves beside its defaults: `{"resource.k8s.io/v1beta2": True}`
    """

    numa_nodes: int = 2
    feature_gates: Mapping[str, bool] = field(default_factory=_nothing)
    api_versions: Mapping[str, bool] = field(default_factory=_nothing)
    kubelet: KubeletSettings = field(default_factory=KubeletSettings)
