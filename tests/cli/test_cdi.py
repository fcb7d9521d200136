import json
import stat
from pathlib import Path

import pytest
import yaml

from cdi.conflicts import read_as_runtimes
from cdi.spec import ContainerEdits, Device, DeviceNode, Spec, encode
from gpuplugin.sim.machine import load


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "cdi"
    made.mkdir()
    return made


def names(text):
    return [device["name"] for device in yaml.safe_load(text)["devices"]]


def test_generate_gives_gpus_by_index_and_uuid_and_all(cli):
    ran = cli("cdi", "generate", "--simulate", "hgx-h100")
    assert (ran.status, ran.err) == (0, "")
    document = yaml.safe_load(ran.out)
    assert (document["cdiVersion"], document["kind"]) == ("0.5.0", "nvidia.com/gpu")
    uuids = [gpu.record.uuid for gpu in load("hgx-h100").gpus]
    assert names(ran.out) == [name for index, uuid in enumerate(uuids) for name in (str(index), uuid)] + ["all"]
    nodes = [[node["path"] for node in device["containerEdits"]["deviceNodes"]] for device in document["devices"]]
    assert nodes[8][0] == "/dev/nvidia7", "GPU 4 of this machine has the minor number 7"
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in document["containerEdits"]["mounts"]}
    assert mounts["/usr/lib64/libcuda.so.1"] == "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"
    assert "hooks" not in document["containerEdits"]
    assert not any("gpuplugin-" in path for path in mounts.values()), "nothing of where it was simulated"


@pytest.mark.parametrize(
    ("given", "first", "version"),
    [
        (["--device-name-strategy", "uuid"], "GPU-", "0.3.0"),
        (["--device-name-strategy", "type-index"], "gpu0", "0.3.0"),
        (["--device-name-strategy=type-index,index"], "gpu0", "0.5.0"),
        (["--device-name-strategy", "index", "--device-name-strategy", "uuid"], "0", "0.5.0"),
    ],
)
def test_names_are_as_asked_for(cli, given, first, version):
    ran = cli("cdi", "generate", "--simulate", "l40s-8", "--format", "json", *given)
    document = json.loads(ran.out)
    assert document["devices"][0]["name"].startswith(first)
    assert document["devices"][-1]["name"] == "all"
    # the nodes of /dev/dri that are links say their host's path
    assert document["cdiVersion"] == ("0.5.0" if ran.out.count("hostPath") else version)


def test_a_gpu_in_mig_mode_is_its_mig_devices(cli, tmp_path):
    text = (Path(load.__code__.co_filename).parent / "machines/hgx-h100.yaml").read_text()
    machine = tmp_path / "with-mig.yaml"
    machine.write_text(text + "mig: {1: [3g.40gb@0, 3g.40gb@4]}\n")
    ran = cli("cdi", "generate", "--simulate", str(machine), "--device-name-strategy", "index")
    assert (ran.status, ran.err) == (0, "")
    assert names(ran.out) == ["0", "1:0", "1:1", *"234567", "all"]
    device = yaml.safe_load(ran.out)["devices"][1]["containerEdits"]["deviceNodes"]
    assert [node["path"].rpartition("/")[2].rstrip("0123456789") for node in device] == ["nvidia", *["nvidia-cap"] * 2]


@pytest.mark.parametrize("name", ["nvidia.yaml", "nvidia.json"])
def test_a_file_is_written_whole_and_readable_in_its_format(cli, folder, name):
    ran = cli("cdi", "generate", "--simulate", "hgx-h100", "--output", str(folder / name), "--vendor", "example.org")
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    text = (folder / name).read_bytes()
    assert text[:1] == (b"{" if name.endswith("json") else b"-")
    spec = read_as_runtimes(text, name)
    assert (spec.kind, len(spec.devices)) == ("example.org/gpu", 17)
    assert stat.S_IMODE((folder / name).stat().st_mode) == 0o644
    assert [path.name for path in folder.iterdir()] == [name]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--mode", "x"], "--mode: 'x' is not allowed; allowed: gpu, gdrcopy, gds, mofed, imex"),
        (["--format", "xml"], "--format: 'xml' is not allowed; allowed: yaml, json"),
        (
            ["--device-name-strategy", "a"],
            "--device-name-strategy: 'a' is not allowed; allowed: uuid, index, type-index",
        ),
        (["--output", "x.txt"], "--output x.txt: runtimes read files that end in .yaml or .json, and no others"),
        (["--mode", "gds"], "load the kernel module nvidia-fs"),
        (["--vendor", "a vendor"], "--vendor, --class: 'a vendor/gpu' is not allowed; allowed: vendor/class, each"),
        (["--mode", "mofed", "--class", "a/b"], "--vendor, --class: 'nvidia.com/a/b' is not allowed"),
    ],
)
def test_a_wish_that_cannot_be_met_is_said(cli, given, said):
    ran = cli("cdi", "generate", "--simulate", "vm-flat", *given)
    assert (ran.status, ran.out) == (1, "")
    assert said in ran.err


def test_without_a_driver_it_says_what_to_do(cli, tmp_path):
    ran = cli("cdi", "generate", "--driver-root", str(tmp_path))
    assert ran.status == 1
    assert "Without a driver, try --simulate hgx-h100" in ran.err


def test_mofed_is_a_document_of_its_own(cli):
    ran = cli("cdi", "generate", "--simulate", "hgx-h100", "--mode", "mofed")
    document = yaml.safe_load(ran.out)
    assert (ran.status, document["kind"], names(ran.out)) == (0, "nvidia.com/mofed", ["all"])
    nodes = [node["path"] for node in document["devices"][0]["containerEdits"]["deviceNodes"]]
    assert nodes == [*(f"/dev/infiniband/uverbs{n}" for n in range(4)), "/dev/infiniband/rdma_cm"]


def test_hooks_are_there_when_asked_for(cli):
    hook = ["--nvidia-cdi-hook-path", "/usr/bin/nvidia-cdi-hook", "--disable-hook", "enable-cuda-compat"]
    ran = cli("cdi", "generate", "--simulate", "hgx-h100", *hook)
    hooks = yaml.safe_load(ran.out)["containerEdits"]["hooks"]
    assert [hook["args"][1] for hook in hooks] == ["update-ldcache", "disable-device-node-modification"]


def test_diff_says_what_would_change_and_nothing_for_the_same(cli, folder):
    where = ["--simulate", "hgx-h100", "--spec-dir", str(folder)]
    ran = cli("cdi", "diff", *where)
    assert ran.status == 1
    assert f"nvidia.com/gpu is defined nowhere in {folder}; name the file" in ran.err
    cli("cdi", "generate", "--simulate", "hgx-h100", "--output", str(folder / "nvidia.json"))
    ran = cli("cdi", "diff", *where)
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    text = (folder / "nvidia.json").read_text().replace("580.95.05", "570.1")
    (folder / "nvidia.json").write_text(text)
    ran = cli("cdi", "diff", *where, str(folder / "nvidia.json"))
    assert ran.status == 1
    assert "-  - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.570.1\n" in ran.out
    assert "+  - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05\n" in ran.out
    (folder / "other.yaml").write_text(text)
    assert "is defined in" in cli("cdi", "diff", *where).err


def document(*names, path="/dev/null"):
    edits = ContainerEdits(device_nodes=(DeviceNode(path=path),))
    devices = tuple(Device(name=name, container_edits=edits) for name in names)
    return encode(Spec(version="0.5.0", kind="nvidia.com/gpu", devices=devices))


def test_list_and_validate_see_what_a_runtime_sees(cli, folder, tmp_path):
    late = tmp_path / "late"
    late.mkdir()
    where = ["--spec-dir", str(folder), "--spec-dir", str(late)]
    (folder / "a.json").write_bytes(document("0", "1"))
    (late / "b.json").write_bytes(document("1"))
    ran = cli("cdi", "list", *where)
    assert (ran.status, ran.out, ran.err) == (0, "nvidia.com/gpu=0\nnvidia.com/gpu=1\n", "")
    assert json.loads(cli("cdi", "list", "--json", *where).out)["nvidia.com/gpu=1"] == str(late / "b.json")
    ran = cli("cdi", "validate", *where)
    assert (ran.status, ran.out) == (0, "ok: 2 documents, 2 devices\n")

    (late / "c.json").write_bytes(document("1"))
    (late / "broken.yaml").write_text("cdiVersion: 0.9.9")
    ran = cli("cdi", "list", *where)
    assert ran.out == "nvidia.com/gpu=0\n"
    assert "which disables it" in ran.err
    ran = cli("cdi", "validate", *where)
    assert ran.status == 1
    assert "broken.yaml" in ran.out
    assert "nvidia.com/gpu=1: defined by" in ran.out


def test_validate_looks_for_the_hosts_files_unless_told_not_to(cli, folder):
    file = folder / "a.json"
    file.write_bytes(document("0", path="/dev/no-such-node"))
    ran = cli("cdi", "validate", str(file))
    assert ran.status == 1
    assert f"{file}: /dev/no-such-node is not there: containers that ask for it will not start" in ran.out
    assert cli("cdi", "validate", "--no-host-files", str(file)).status == 0


def test_validate_tells_of_an_image_that_does_not_fit(cli, folder, tmp_path):
    (tmp_path / "image/lib").mkdir(parents=True)
    (tmp_path / "image/lib/ld-musl-x86_64.so.1").touch()
    ran = cli("cdi", "validate", "--spec-dir", str(folder), "--image", str(tmp_path / "image"))
    assert ran.status == 1
    assert "it is made with musl" in ran.out
