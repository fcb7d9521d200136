"""Where the cluster keeps things and listens: fixed addresses, so that two clusters never share a machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NODE: Final = "127.0.0.1"
HOST: Final = "127.0.0.1"
API_PORT: Final = 16443
ETCD_PORT: Final = 12379
KUBELET_PORT: Final = 10250
KUBELET_HEALTH_PORT: Final = 10248
LINK: Final = "gpuplugin0"
POD_NETWORK: Final = "198.51.100.0/24"
IMAGE: Final = "localhost/busybox:1"
KUBELET_FOLDER: Final = Path("/var/lib/kubelet")  # a device plugin's socket folder is nowhere else
KUBELET_OWNER: Final = KUBELET_FOLDER / ".gpuplugin-test-cluster"
LOCK: Final = Path("/run/gpuplugin-cluster.lock")


@dataclass(frozen=True)
class Layout:
    """The paths of one cluster, all below `state`, which goes away with it but for the logs."""

    state: Path

    @property
    def run(self) -> Path:
        """One file for each process: its number and start time."""
        return self.state / "run"

    @property
    def logs(self) -> Path:
        """One file for each component; kept until the next start."""
        return self.state / "log"

    @property
    def containerd_socket(self) -> Path:
        return self.state / "containerd.sock"

    @property
    def certificates(self) -> Path:
        """Where the API server writes the certificate that it signs for itself."""
        return self.state / "pki"

    @property
    def kubelet_config(self) -> Path:
        return self.state / "kubelet.json"

    @property
    def containerd_config(self) -> Path:
        return self.state / "containerd.toml"

    @property
    def tokens(self) -> Path:
        return self.state / "tokens.csv"

    @property
    def service_account_key(self) -> Path:
        return self.state / "service-account.key"

    @property
    def admin_kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    def kubeconfig(self, user: str) -> Path:
        """The kubeconfig of a component's user, `node` or `kube-scheduler` for example."""
        return self.state / f"{user}.kubeconfig"


def state_folder() -> Path:
    """$GPUPLUGIN_TEST_CLUSTER_STATE, or the usual place."""
    return Path(os.environ.get("GPUPLUGIN_TEST_CLUSTER_STATE") or "/tmp/gpuplugin-cluster").absolute()
