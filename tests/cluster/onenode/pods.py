"""Pods of the cluster's one image, as short as a test wants to write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onenode.layout import IMAGE

SCRIPT = ("sh", "-euc")
FOREVER = ("sh", "-c", "trap exit TERM; sleep 2147483647 & wait")  # a first process ignores SIGTERM without a trap


def busybox_pod(name: str, *command: str, limits: Mapping[str, str | int] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod that runs `command` once in a container `main`; with no command it sleeps.

    One word is a shell script. `limits` are its requests too (`{"cpu": 1, "nvidia.com/gpu": 1}`), and what is in
    `spec` goes to the pod's spec (`hostNetwork=True`) beside its container.
    """
    container: dict[str, Any] = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": [*SCRIPT, *command] if len(command) == 1 else list(command or FOREVER),
    }
    if limits:
        container["resources"] = {"limits": {resource: str(amount) for resource, amount in limits.items()}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }
