"""The DaemonSet of MPS control daemons: there where GPUs are shared by MPS, and never replaced by itself."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.chart.test_chart import Render, helm, render, run  # noqa: F401 - fixtures

pytestmark = pytest.mark.go
MPS = "config.sharing.mps.resources[0].name=nvidia.com/gpu,config.sharing.mps.resources[0].replicas=4"


def daemon_sets(text: str) -> dict[str, Any]:
    found = [each for each in yaml.safe_load_all(text) if each]
    return {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "DaemonSet"}


def pod(text: str) -> dict[str, Any]:
    found: dict[str, Any] = daemon_sets(text)["gpuplugin-mps"]["template"]["spec"]
    return found


def mounts(text: str) -> dict[str, dict[str, Any]]:
    (container,) = pod(text)["containers"]
    return {mount["mountPath"]: mount for mount in container["volumeMounts"]}


def test_without_mps_there_is_none(render: Render):  # noqa: F811
    assert daemon_sets(render()).keys() == {"gpuplugin"}


def test_it_is_replaced_by_hand_alone_and_nothing_restarts_it(render: Render):  # noqa: F811
    spec = daemon_sets(render("--set", MPS))["gpuplugin-mps"]
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    (container,) = spec["template"]["spec"]["containers"]
    assert not {"livenessProbe", "startupProbe"} & container.keys()
    assert "limits" not in container["resources"]
    assert spec["template"]["spec"]["hostPID"] is True


def test_an_upgrade_of_the_daemon_changes_nothing_about_running_pods(render: Render):  # noqa: F811
    """The selectors are disjoint, and what chooses the pods is the same before and after."""
    before, after = (daemon_sets(render("--set", f"{MPS},image.tag={tag}")) for tag in ("v1", "v2"))
    selectors = [before[name]["selector"]["matchLabels"] for name in ("gpuplugin", "gpuplugin-mps")]
    assert selectors[0] != selectors[1]
    assert all(before[name]["selector"] == after[name]["selector"] for name in before)
    assert before["gpuplugin-mps"]["template"]["metadata"] == after["gpuplugin-mps"]["template"]["metadata"]


def test_both_pods_have_the_folder_at_the_same_path(render: Render):  # noqa: F811
    text = render("--set", f"{MPS},config.flags.mpsRoot=/srv/mps")
    assert mounts(text)["/srv/mps"]["name"] == mounts(text)["/driver-root/srv/mps"]["name"] == "mps"
    assert mounts(text)["/dev/shm"]["name"] == mounts(text)["/driver-root/dev/shm"]["name"] == "mps-shm"
    (init,) = pod(text)["initContainers"]
    assert init["volumeMounts"] == [{"name": "mps", "mountPath": "/srv/mps", "mountPropagation": "Bidirectional"}]
    (plugin,) = daemon_sets(text)["gpuplugin"]["template"]["spec"]["containers"]
    assert {mount["mountPath"]: mount.get("readOnly") for mount in plugin["volumeMounts"]}["/srv/mps"] is True
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod(text)["volumes"] if "hostPath" in volume}
    assert (paths["mps"], paths["mps-shm"]) == ("/srv/mps", "/srv/mps/shm")


def test_a_driver_container_has_its_root_mounted_with_room_for_the_folder(render: Render):  # noqa: F811
    root = mounts(render("--set", f"{MPS},hostPaths.driverRoot=/run/nvidia/driver"))["/driver-root"]
    assert root == {"name": "driver-root", "mountPath": "/driver-root", "mountPropagation": "HostToContainer"}


def test_a_runtime_that_brings_the_program_needs_no_driver_root_as_root(render: Render):  # noqa: F811
    text = render("--set", f"{MPS},access=runtime")
    assert pod(text)["runtimeClassName"] == "nvidia"
    assert "/driver-root/run/nvidia/mps" not in mounts(text)
    (container,) = pod(text)["containers"]
    assert {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"} in container["env"]


def test_a_profile_with_mps_brings_it_and_what_it_reads(render: Render):  # noqa: F811
    settings = MPS.replace("config.", "profiles.files.shared.")
    text = render("--set", f"{settings},profiles.default=shared")
    assert pod(text)["automountServiceAccountToken"] is True
    assert "/etc/gpuplugin-profiles" in mounts(text)


def test_it_can_stay_until_the_last_client_has_left(render: Render):  # noqa: F811
    assert "/run/nvidia/mps" in mounts(render("--set", "mps.enabled=true"))
