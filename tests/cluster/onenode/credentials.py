"""Who may talk to the API server: tokens, so that RBAC and the node authorizer see the components' real names."""

from __future__ import annotations

import json
import secrets
import subprocess
from pathlib import Path
from typing import Any

from onenode.layout import API_PORT, HOST, NODE, Layout

_USERS = {  # the kubeconfig's name: the user's name and groups
    "admin": ("admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", "system:masters"),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "node": (f"system:node:{NODE}", "system:nodes"),
}


def write_credentials(layout: Layout) -> None:
    """Make tokens, kubeconfigs and the service accounts' key, where the state folder has none."""
    if layout.tokens.exists():
        return
    key = layout.service_account_key
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    lines = []
    for name, (user, groups) in _USERS.items():
        token = secrets.token_hex(16)
        path = layout.admin_kubeconfig if name == "admin" else layout.kubeconfig(name)
        _write_private(path, json.dumps(_kubeconfig(layout, user, token), indent=1))
        lines.append(f'{token},{user},{user},"{groups}"\n')
    _write_private(layout.tokens, "".join(lines))


def admin_token(layout: Layout) -> str:
    """The token of a user who may do everything."""
    return layout.tokens.read_text().partition(",")[0]


def write_authority(layout: Layout) -> None:
    """Split the authority's certificate off the chain that the API server made for itself, for pods to trust."""
    mark = "-----BEGIN CERTIFICATE-----"
    chain = (layout.certificates / "apiserver.crt").read_text()
    (layout.certificates / "ca.crt").write_text(mark + chain.split(mark)[-1])


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _kubeconfig(layout: Layout, user: str, token: str) -> dict[str, Any]:
    server = {
        "server": f"https://{HOST}:{API_PORT}",
        "certificate-authority": str(layout.certificates / "apiserver.crt"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
    }
