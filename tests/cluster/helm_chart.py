"""The chart as helm renders it, for the test cluster."""

from __future__ import annotations

import subprocess

import pytest
import yaml
from deployed import NAMESPACE
from gpunode import CHECKOUT
from onenode.layout import API_PORT, HOST

from tests.gocheck.build import GoMissingError, build


def rendered(*settings: str) -> str:
    """The chart by helm, its pods brought to an API server on loopback: this cluster has no services."""
    try:
        helm = build(CHECKOUT / "tests/gocheck/helm")
    except GoMissingError as error:  # the cluster needs Go too
        pytest.fail(str(error))
    chart = CHECKOUT / "charts/gpuplugin"
    command = [helm, "template", "gpuplugin", chart, f"--namespace={NAMESPACE}", "--no-hooks", *settings]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    objects = [found for found in yaml.safe_load_all(text) if found]
    for found in objects:
        if found["kind"] == "DaemonSet":
            spec = found["spec"]["template"]["spec"]
            spec["hostNetwork"] = True
            server = {"KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": str(API_PORT)}
            spec["containers"][0]["env"] += [{"name": name, "value": value} for name, value in server.items()]
    return yaml.safe_dump_all(objects)
