import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuplugin.discovery.kubelet_settings import read
from gpuplugin.discovery.places import Place
from gpuplugin.model.kubelet import KubeletSettings

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


class Node:
    """A host's files below one folder, seen as the host itself sees them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kubelet = root / "var/lib/kubelet"
        self.kubelet.mkdir(parents=True)
        (root / "proc").mkdir()

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def runs(self, *words: str, comm: str = "kubelet", pid: int = 812) -> None:
        self.write(f"proc/{pid}/comm", f"{comm}\n")
        self.write(f"proc/{pid}/cmdline", "".join(f"{word}\0" for word in words))

    def settings(self, host: str = "/") -> KubeletSettings:
        return read(self.kubelet, self.root / "proc", Place(self.root, host))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_nothing_to_see_is_nothing_known(node: Node):
    assert node.settings() == KubeletSettings()


def test_file_of_kubeadm_with_defaults_for_what_it_leaves_out(node: Node):
    node.write("/var/lib/kubelet/config.yaml", HEAD + "topologyManagerPolicy: restricted\nreservedSystemCPUs: 0-1,8\n")
    found = node.settings()
    assert (found.topology_policy, found.topology_scope) == ("restricted", "container")
    assert (found.cpu_policy, found.memory_policy) == ("none", "None")
    assert (found.reserved_cpus, found.reserves_cpu) == ((0, 1, 8), True)
    assert found.read_from == ("/var/lib/kubelet/config.yaml",)
    assert found.pins_cpus is False


def test_command_line_names_the_files_and_counts_most(node: Node):
    node.write("/etc/k.json", json.dumps({"kind": "KubeletConfiguration", "topologyManagerScope": "pod"}))
    node.write("/var/lib/kubelet/config.yaml", HEAD + "topologyManagerPolicy: restricted\n")
    node.runs("/usr/bin/kubelet", "--config=/etc/k.json", "--v=2", "--topology_manager_policy", "best-effort",
              "--topology-manager-policy-options=prefer-closest-numa-nodes=true,max-allowable-numa-nodes=16",
              "--kube-reserved=cpu=500m,memory=1Gi")  # fmt: skip
    found = node.settings()
    assert (found.topology_policy, found.topology_scope) == ("best-effort", "pod")
    assert found.topology_options == {"prefer-closest-numa-nodes": "true", "max-allowable-numa-nodes": "16"}
    assert (found.reserved_cpus, found.reserves_cpu) == (None, True)
    assert found.read_from == ("/etc/k.json", "kubelet's command line")


def test_process_without_flags_has_the_defaults(node: Node):
    node.runs("kubelet")
    found = node.settings()
    assert (found.topology_policy, found.cpu_policy, found.reserves_cpu) == ("none", "none", False)


def test_other_processes_are_not_taken_for_kubelet(node: Node):
    node.runs("python", "kubelet", "--cpu-manager-policy=static", comm="python")
    assert node.settings() == KubeletSettings()


def test_a_process_whose_name_is_no_text_hides_nothing(node: Node):
    node.runs("sh", comm="sh", pid=7)
    (node.root / "proc/7/comm").write_bytes(b"\xff\xfe\n")
    node.runs("kubelet", "--cpu-manager-policy=static")
    assert node.settings().cpu_policy == "static"


def test_drop_ins_are_merged_in_the_order_of_their_names(node: Node):
    node.write("/etc/kubernetes/kubelet/config.json",
               json.dumps({"kind": "KubeletConfiguration", "cpuManagerPolicy": "static", "topologyManagerScope": "pod",
                           "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "9"}}))  # fmt: skip
    folder = "/etc/kubernetes/kubelet/config.json.d"
    node.write(f"{folder}/20-b.conf", HEAD + "topologyManagerPolicy: restricted\n")
    node.write(f"{folder}/10-a.conf", HEAD + "topologyManagerPolicy: none\ntopologyManagerScope: null\n")
    node.write(f"{folder}/15/c.conf", HEAD + "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: true}\n")
    node.write(f"{folder}/30-d.yaml", HEAD + "topologyManagerPolicy: single-numa-node\n")
    found = node.settings()
    assert (found.topology_policy, found.topology_scope, found.cpu_policy) == ("restricted", "container", "static")
    assert found.topology_options == {"max-allowable-numa-nodes": "9", "prefer-closest-numa-nodes": "true"}
    assert [Path(path).name for path in found.read_from] == ["config.json", "10-a.conf", "c.conf", "20-b.conf"]


def test_drop_ins_alone_are_enough(node: Node):
    node.write("/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s.conf", HEAD + "cpuManagerPolicy: static\n")
    assert (node.settings().cpu_policy, node.settings().topology_policy) == ("static", "none")


def test_kubeconfig_at_a_usual_place_is_not_taken_for_settings(node: Node):
    node.write("/etc/kubernetes/kubelet.conf", "apiVersion: v1\nkind: Config\n")
    assert node.settings() == KubeletSettings()
    node.write("/etc/kubernetes/kubelet.conf", HEAD + "topologyManagerPolicy: restricted\n")
    assert node.settings().topology_policy == "restricted"


def test_state_files_say_what_kubelet_ran_with(node: Node):
    node.write("/var/lib/kubelet/cpu_manager_state", json.dumps({"policyName": "static", "defaultCpuSet": "0-7"}))
    node.write("/var/lib/kubelet/memory_manager_state", json.dumps({"policyName": "None"}))
    found = node.settings()
    assert (found.cpu_state, found.memory_state, found.cpu_policy, found.topology_policy) == (
        "static",
        "None",
        None,
        None,
    )
    assert found.pins_cpus is True


def test_driver_root_that_is_not_the_hosts_shows_only_kubelets_own_folder(node: Node):
    node.write("/etc/kubernetes/kubelet/config.json", json.dumps({"kind": "KubeletConfiguration"}))
    assert node.settings(host="/run/nvidia/driver") == KubeletSettings()
    node.write("/var/lib/kubelet/config.yaml", HEAD + "topologyManagerPolicy: restricted\n")
    assert node.settings(host="/run/nvidia/driver").topology_policy == "restricted"


def test_links_lead_where_they_lead_on_the_host(node: Node):
    node.write("/opt/k/config.yaml", HEAD + "topologyManagerPolicy: restricted\n")
    (node.root / "etc").mkdir()
    (node.root / "etc/k.yaml").symlink_to("/opt/k/config.yaml")
    node.runs("kubelet", "--config", "/etc/k.yaml")
    assert node.settings().topology_policy == "restricted"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kind: [", "expected"),
        ("- 1", "no KubeletConfiguration"),
        ("x" * (1 << 21), "larger than"),
        (None, "not mounted"),
    ],
)
def test_what_cannot_be_read_is_told_and_no_default_stands_for_it(node: Node, text: str | None, why: str):
    if text is not None:
        node.write("/etc/k.yaml", text)
    node.runs("kubelet", "--config=/etc/k.yaml", "--cpu-manager-policy=static")
    found = node.settings()
    assert (found.cpu_policy, found.topology_policy, found.reserves_cpu) == ("static", None, None)
    (trouble,) = found.troubles
    assert trouble.startswith("/etc/k.yaml: ")
    assert why in trouble


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"x"'])
def test_state_file_that_makes_no_sense_is_told_of(node: Node, text: str):
    node.write("/var/lib/kubelet/cpu_manager_state", text)
    found = node.settings()
    assert found.cpu_state is None
    assert len(found.troubles) == 1


def test_list_of_cpus_that_makes_no_sense_is_told_of(node: Node):
    node.write("/var/lib/kubelet/config.yaml", HEAD + "reservedSystemCPUs: all\n")
    assert node.settings().troubles == ("reservedSystemCPUs: 'all' is no list of CPUs; allowed: such as 0-3,8",)


KEYS = st.sampled_from(
    ["topologyManagerPolicy", "topologyManagerPolicyOptions", "cpuManagerPolicy", "reservedSystemCPUs", "kubeReserved"]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(), inner, max_size=3),
    max_leaves=8,
)
FILE = (
    st.dictionaries(KEYS, ANYTHING).map(lambda values: json.dumps({"kind": "KubeletConfiguration", **values}).encode())
    | st.binary()
)


@settings(deadline=None, max_examples=25)
@given(config=FILE, state=FILE)
@example(config=b"[" * 2000, state=b"[" * 2000)
@example(config=b"kind: KubeletConfiguration\nreservedSystemCPUs: 0-99999999999", state=b"")
def test_whatever_the_files_hold_nothing_is_raised(config: bytes, state: bytes):
    with tempfile.TemporaryDirectory() as folder:
        made = Node(Path(folder))
        (made.kubelet / "config.yaml").write_bytes(config)
        (made.kubelet / "cpu_manager_state").write_bytes(state)
        found = made.settings()
        made.runs("kubelet", "--config=/var/lib/kubelet/config.yaml")
        assert isinstance(found, KubeletSettings)
        assert made.settings().read_from != ()
