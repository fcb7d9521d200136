import json

from gpuplugin.cli.kubelet import add_kubelet, look_at_kubelet
from gpuplugin.cli.look import look
from gpuplugin.cli.output import Page
from gpuplugin.model.kubelet import KubeletSettings


def text(settings: KubeletSettings) -> str:
    page = Page()
    add_kubelet(page, settings, look("hgx-h100"))
    return page.text()


def test_settings_are_shown_with_what_they_mean_here(tmp_path, monkeypatch):
    configured = {"topologyManagerPolicy": "none", "reservedSystemCPUs": "0-1", "cpuManagerPolicy": "static"}
    (tmp_path / "config.yaml").write_text(json.dumps({"kind": "KubeletConfiguration", **configured}))
    (tmp_path / "proc").mkdir()
    monkeypatch.setenv("NVIDIA_DRIVER_ROOT", str(tmp_path))  # not the root of the machine that runs the test
    monkeypatch.setenv("GPUPLUGIN_PATHS_KUBELET", str(tmp_path))
    monkeypatch.setenv("GPUPLUGIN_PATHS_PROC", str(tmp_path / "proc"))
    lines = text(look_at_kubelet()).splitlines()
    assert lines[:7] == [
        "Kubelet",
        "topologyManagerPolicy  none",
        "topologyManagerScope   container",
        "cpuManagerPolicy       static",
        "memoryManagerPolicy    None",
        "reservedSystemCPUs     0-1",
        "read from              /var/lib/kubelet/config.yaml",
    ]
    assert lines[7].startswith("warning: topologyManagerPolicy is none")


def test_what_is_not_known_or_not_read_is_said_to_be():
    shown = text(KubeletSettings(troubles=("/etc/k.yaml: Permission denied",)))
    assert "topologyManagerPolicy  not known" in shown
    assert "not read: /etc/k.yaml: Permission denied" in shown


def test_machine_without_kubelet_has_no_such_part():
    assert text(KubeletSettings()) == ""
