"""What the chart makes of metrics: a port, what the daemon needs for it, and a PodMonitor where it is asked for."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.chart.test_chart import CHART, Render, container, helm, objects, render, run

pytestmark = pytest.mark.go
__all__ = ["helm", "render", "run"]

ON = "--set=config.metrics.enabled=true"


def test_nothing_is_opened_unless_asked_for(render: Render):
    text = render()
    assert "ports" not in container(text)
    assert "PodMonitor" not in objects(text)


def test_metrics_have_a_port_kubelets_word_on_pods_and_the_nodes_name(render: Render):
    text = render(ON)
    assert container(text)["ports"] == [{"name": "metrics", "containerPort": 9400}]
    assert "NODE_NAME" in {one["name"] for one in container(text)["env"]}
    [mount] = [one for one in container(text)["volumeMounts"] if one["name"] == "pod-resources"]
    assert mount == {"name": "pod-resources", "mountPath": "/var/lib/kubelet/pod-resources", "readOnly": True}
    volumes = objects(text)["DaemonSet"]["spec"]["template"]["spec"]["volumes"]
    assert [one["hostPath"]["path"] for one in volumes if one["name"] == "pod-resources"] == [mount["mountPath"]]


@pytest.mark.parametrize(("address", "port"), [(":9401", 9401), ("0.0.0.0:80", 80), ("[::]:9402", 9402)])
def test_the_port_is_that_of_the_address(render: Render, address: str, port: int):
    text = render(ON, f"--set-string=config.metrics.address={address}")
    assert container(text)["ports"][0]["containerPort"] == port


def test_claims_and_metrics_share_the_mount(render: Render):
    text = render(ON, "--set=claims.enabled=true", "--set=config.dra.gpus=all")
    names = [one["name"] for one in container(text)["volumeMounts"]]
    assert len(names) == len(set(names))


def test_the_secret_is_mounted(render: Render):
    text = render(ON, "--set=metrics.secret=gpuplugin-tls")
    assert {"name": "metrics", "mountPath": "/etc/gpuplugin-metrics", "readOnly": True} in container(text)[
        "volumeMounts"
    ]
    volumes = objects(text)["DaemonSet"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "metrics", "secret": {"secretName": "gpuplugin-tls"}} in volumes


def test_the_operator_finds_the_pods_and_their_port(render: Render):
    more = ("--set=metrics.podMonitor.labels.release=prometheus", "--set=metrics.podMonitor.endpoint.scheme=https")
    text = render(ON, "--set=metrics.podMonitor.enabled=true", *more)
    monitor, pods = objects(text)["PodMonitor"], objects(text)["DaemonSet"]["spec"]["template"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    assert monitor["spec"]["podMetricsEndpoints"] == [
        {"port": "metrics", "path": "/metrics", "honorLabels": True, "scheme": "https"}
    ]


def test_a_monitor_of_nothing_is_refused(run: Callable[..., subprocess.CompletedProcess[str]]):
    done = run("template", "gpuplugin", str(CHART), "--set=metrics.podMonitor.enabled=true")
    assert done.returncode != 0
    assert "set config.metrics.enabled" in done.stderr
