"""Shows the kubelet a machine of several NUMA nodes.

Without it a kubelet on a machine of one NUMA node drops the NUMA ids that a device plugin reports and aligns nothing,
without a word. The overlay lives in the node's own mount namespace: the machine keeps its own list.
"""

from __future__ import annotations

import os

_NODES = "/sys/devices/system/node"


def overlay(nodes: int, cpus: int | None = None, memory_kib: int | None = None) -> str:
    """Shell that lays `nodes` NUMA nodes over the kernel's; CPUs are dealt to them in turn, each a core of its own."""
    if not nodes:
        return ":"
    cpus = cpus or os.cpu_count() or 1
    memory_kib = memory_kib or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024
    lines = [
        f"mount -t tmpfs -o mode=755 tmpfs {_NODES}",
        f"cd {_NODES}",
        f"echo 0-{nodes - 1} | tee online possible >/dev/null",
    ]
    for node in range(nodes):
        distances = " ".join("10" if other == node else "21" for other in range(nodes))
        lines += [
            f"mkdir node{node}",
            f"echo 'Node {node} MemTotal: {memory_kib // nodes} kB' >node{node}/meminfo",
            f"echo {distances} >node{node}/distance",
        ]
        for cpu in range(node, cpus, nodes):
            topology = f"node{node}/cpu{cpu}/topology"
            lines += [
                f"mkdir -p {topology}",
                f"echo {cpu} >{topology}/core_id",
                f"echo {node} >{topology}/physical_package_id",
            ]
    return "\n".join(lines)
