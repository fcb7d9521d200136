#!/usr/bin/env python3
"""The test cluster by hand: rig.py up | down | status | build.

    sudo python tests/cluster/rig.py up     prints what to export for kubectl
    sudo python tests/cluster/rig.py down

With the default settings it is used by the tests, and left running.
"""

import argparse
import re
import sys
import time
from pathlib import Path
from typing import get_args

from onenode import Cluster, ClusterSettings, Component, KubeletSettings
from onenode.errors import ClusterError
from onenode.settings import TopologyPolicy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["up", "down", "status", "build"])
    parser.add_argument("--numa", type=int, default=2, help="NUMA nodes that the kubelet sees; 0: the machine's (2)")
    parser.add_argument(
        "--topology", default="single-numa-node", choices=get_args(TopologyPolicy), help="(single-numa-node)"
    )
    parser.add_argument("--gates", default="", help="feature gates of every component: A=true,B=false")
    arguments = parser.parse_args()
    gates = dict(re.findall(r"(\w+)=(true|false)", arguments.gates))
    settings = ClusterSettings(
        numa_nodes=arguments.numa,
        feature_gates={name: value == "true" for name, value in gates.items()},
        kubelet=KubeletSettings(topology_policy=arguments.topology),
    )
    began = time.monotonic()
    try:
        cluster = Cluster(settings)
        match arguments.action:
            case "up":
                with cluster.reserved(patience=0):
                    cluster.up()
                    cluster.keep()
                print(f"# up after {time.monotonic() - began:.1f} s")
                print(f"export KUBECONFIG={cluster.layout.admin_kubeconfig} PATH={cluster.binaries}:$PATH")
            case "down":
                with cluster.reserved(patience=0):
                    cluster.down()
                print(f"# down after {time.monotonic() - began:.1f} s; logs: {cluster.layout.logs}")
            case "status":
                _print_status(cluster)
            case "build":
                print(cluster.binaries)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _print_status(cluster: Cluster) -> None:
    for component in Component:
        pid = cluster.pid(component)
        smaps = Path(f"/proc/{pid}/smaps_rollup").read_text() if pid else ""
        memory = re.search(r"^Pss: +(\d+)", smaps, re.MULTILINE)
        print(f"{component:24} {pid or '-':>8} {int(memory[1]) >> 10 if memory else 0:5} MiB")


if __name__ == "__main__":
    sys.exit(main())
