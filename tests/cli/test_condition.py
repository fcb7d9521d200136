"""The Node's condition taken away by hand."""

from __future__ import annotations

import pytest

from gpuplugin.kube.client import Kube
from tests.kube.standin import kubeconfig
from tests.kube.test_conditions import OURS, node
from tests.kube.test_labels import Server


def test_taking_away_needs_to_know_whose(cli, monkeypatch):
    monkeypatch.delenv("NODE_NAME", raising=False)
    ran = cli("condition", "remove")
    assert (ran.status, ran.out) == (1, "")
    assert "node.name" in ran.err
    assert "--all" in ran.err


@pytest.mark.parametrize(
    ("arguments", "names"), [(("--all",), ["here", "there"]), ((), ["here"])], ids=["all", "this node"]
)
def test_nodes_that_had_it_are_told(cli, monkeypatch, tmp_path, arguments, names):
    server = Server()
    for name in ("here", "there"):
        server.objects[f"/api/v1/nodes/{name}"] = node(name, "gpuplugin", "Apply", OURS)
        server.objects[f"/api/v1/nodes/{name}/status"] = server.objects[f"/api/v1/nodes/{name}"]
    began = Kube.__init__
    monkeypatch.setattr(Kube, "__init__", lambda self, file: began(self, file, transport=server))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path)))
    monkeypatch.setenv("NODE_NAME", "here")
    ran = cli("condition", "remove", *arguments)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.split() == names
    assert [path for _, path, _, _ in server.sent] == [f"/api/v1/nodes/{name}/status" for name in names]
