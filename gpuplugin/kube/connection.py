"""HTTP to one API server: where it is, who we are and whom we trust come from lightkube, deadlines are ours.

lightkube reads the service account (and its token again when it is no longer accepted) or a kubeconfig, and makes an
HTTP client of it. Its own verbs are not used: they have no deadline for a whole call, no second try, and lose the
status where a proxy answers without a Content-Type.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import httpx2 as httpx
import yaml
from lightkube import ConfigError, KubeConfig
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import SERVICE_ACCOUNT

from gpuplugin.errors import KubeUnconfigured

if TYPE_CHECKING:
    from pathlib import Path

CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
USER_AGENT = "gpuplugin"

TROUBLE = (httpx.HTTPError, httpx.StreamError, TimeoutError, OSError, ConfigError)
"""What a request can raise besides an answer; ConfigError where the token's file is gone."""

_NO_KUBECONFIG = (TypeError, AttributeError, yaml.YAMLError)
"""What lightkube raises for a file that is of another shape; their texts say nothing, or quote it with its secrets."""

_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
]
"""A peer that vanished without a word (node gone, firewall forgot us) is noticed after a minute, also on a watch."""


def http(kubeconfig: Path | None, transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """Make a client for the server and user of a kubeconfig's current context, or, without one, of the pod we are in.

    transport: stands in for the network, in tests. Raises KubeUnconfigured.
    """
    source = str(kubeconfig) if kubeconfig else f"the service account in {SERVICE_ACCOUNT}"
    try:
        config = (
            KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_service_account(SERVICE_ACCOUNT)
        ).get()
        if config is None or config.user is None:
            raise KubeUnconfigured(f"{source}: names no user; give the current context one")
        trusted = verify_cluster(config.cluster, config.user, config.abs_file, trust_env=False)
        auth = user_auth(config.user)
    except _NO_KUBECONFIG as error:
        raise KubeUnconfigured(f"{source}: is empty, half written, or no kubeconfig") from error
    except (ConfigError, LookupError, ValueError, OSError) as error:
        outside = "" if kubeconfig or "KUBERNETES_SERVICE_HOST" in os.environ else "; outside a pod give a kubeconfig"
        raise KubeUnconfigured(f"{source}: {error!r}{outside}") from error
    return httpx.AsyncClient(
        base_url=config.cluster.server,
        auth=auth,
        headers={"User-Agent": USER_AGENT, "Accept": "application/json"},
        timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        transport=transport or httpx.AsyncHTTPTransport(verify=trusted, socket_options=_KEEPALIVE, trust_env=False),
        trust_env=False,
    )
