"""A real Kubernetes of one node on this machine, for tests of what runs beside a kubelet.

Device plugins and DRA drivers are judged by the kubelet, the scheduler and containerd: a double of those agrees with
whatever its author believed. So the tests get the real ones, built from pinned Go modules, with no Docker and no image
registry. `Cluster` is the door; `tests/cluster/README.md` says what is real and what is not.
"""

from onenode.cluster import Cluster
from onenode.components import Component
from onenode.settings import ClusterSettings, KubeletSettings

__all__ = ["Cluster", "ClusterSettings", "Component", "KubeletSettings"]
