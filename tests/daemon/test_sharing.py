"""MIG, time-slicing and MPS through the whole daemon, with a stand-in kubelet."""

import json

from structlog.testing import capture_logs

from tests.daemon.conftest import GPU, SOON

SMALL, BIG = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
SLICED = "sharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: {replicas}{more}}}]{section}}}}}\n"


def sliced(replicas=4, more="", section=""):
    return SLICED.format(replicas=replicas, more=more, section=section)


def ids(bench, resource=GPU):
    return [device.id for device in bench.kubelet.devices(resource)]


def by_gpu(admission):
    return {one.partition("::")[0] for one in admission.ids}


def lines(logs, event):
    return [line for line in logs if line["event"] == event]


async def test_five_pods_share_the_four_gpus_of_the_node_that_kubelet_fills_first(bench):
    async with bench.daemon(config_file=bench.configure(sliced())):
        await bench.usable(32)
        pods = [await bench.kubelet.admit(f"p{number}", GPU, 1) for number in range(5)]
        assert len(set.union(*map(by_gpu, pods[:4]))) == 4
        assert by_gpu(pods[4]) <= set.union(*map(by_gpu, pods[:4]))
        [name] = [device.name for device in pods[0].response.cdi_devices]
        assert name == f"gpuplugin.io/gpu={pods[0].ids[0].partition('::')[0]}"


async def test_packed_pods_fill_one_gpu_first(bench):
    async with bench.daemon(config_file=bench.configure(sliced()), shared_devices_allocation_policy="packed"):
        await bench.usable(32)
        pods = [await bench.kubelet.admit(f"p{number}", GPU, 1) for number in range(5)]
        assert len(set.union(*map(by_gpu, pods[:4]))) == 1
        assert by_gpu(pods[4]) != by_gpu(pods[3])


async def test_a_pod_that_wants_two_slices_is_refused_where_it_may_have_one(bench):
    config = bench.configure(sliced(section=", failRequestsGreaterThanOne: true"))
    async with bench.daemon(config_file=config):
        await bench.usable(32)
        refused = await bench.kubelet.admit("two", GPU, 2)
        assert refused.reason == "UnexpectedAdmissionError"
        assert "sharing.timeSlicing.failRequestsGreaterThanOne" in refused.message


async def test_slices_that_must_be_apart_are_apart_or_refused(bench):
    async with bench.daemon(config_file=bench.configure(sliced(2, ", devices: 2, spread: required, rename: part"))):
        await bench.usable(4, "nvidia.com/part")
        await bench.usable(6)
        assert len(by_gpu(await bench.kubelet.admit("two", "nvidia.com/part", 2))) == 2
        assert len(by_gpu(await bench.kubelet.admit("again", "nvidia.com/part", 2))) == 2
        bench.kubelet.release("again")
        refused = await bench.kubelet.admit("three", "nvidia.com/part", 2 + 1)
        assert not refused.admitted


async def test_a_sick_gpu_takes_all_its_slices_and_gives_them_back(bench):
    with capture_logs() as logs:
        async with bench.daemon(config_file=bench.configure(sliced(16))):
            await bench.usable(128)
            bench.state.recovery(3, 1)
            bench.state.xid(3, 95)
            await bench.usable(112)
            bench.state.recovery(3, 0)
            await bench.usable(128)
    [withdrawn] = lines(logs, "withdrawn")
    assert len(withdrawn["devices"]) == 1


async def test_ids_are_the_same_after_a_restart(bench):
    config = bench.configure(sliced())
    async with bench.daemon(config_file=config):
        await bench.usable(32)
        before = ids(bench)
    async with bench.daemon(config_file=config):
        await bench.usable(32)
        assert ids(bench) == before


def layout(bench, gpu, *profiles):
    bench.machine.mig_mode(gpu, enabled=True)
    for profile in profiles:
        bench.machine.mig_create(gpu, profile)


async def test_mixed_offers_each_profile_and_a_new_layout_with_no_restart(bench):
    layout(bench, 0, "3g.40gb", "1g.10gb")
    async with bench.daemon(mig_strategy="mixed"):
        await bench.usable(7)
        await bench.usable(1, BIG)
        await bench.usable(1, SMALL)
        layout(bench, 4, "1g.10gb", "1g.10gb")
        await bench.usable(6)
        await bench.usable(3, SMALL)
        assert {device.nodes for device in bench.kubelet.devices(SMALL)} == {frozenset([0]), frozenset([1])}
        bench.machine.mig_destroy(0, 0)
        await bench.usable(0, BIG)
        assert ids(bench, BIG) == []
        document = json.loads(bench.cdi.read_text())
        assert set(ids(bench, SMALL)) <= {device["name"] for device in document["devices"]}


async def test_a_new_layout_is_noticed_where_no_document_is_wanted(bench):
    async with bench.daemon(mig_strategy="mixed", device_list_strategy="envvar"):
        await bench.usable(8)
        layout(bench, 0, "3g.40gb")
        await bench.usable(1, BIG)


async def test_an_instances_fault_takes_that_instance_and_a_gpus_fault_all_of_them(bench):
    layout(bench, 0, "1g.10gb", "1g.10gb")
    async with bench.daemon(mig_strategy="mixed"):
        await bench.usable(2, SMALL)
        [first, second] = bench.state.snapshot.migs
        bench.state.recovery(0, None)  # a driver that does not tell what it wants; else it wants all of the GPU reset
        bench.state.xid(0, 95, gi=first.gi, ci=first.ci)
        await bench.usable(1, SMALL)
        healthy = [device.id for device in bench.kubelet.devices(SMALL) if device.healthy]
        assert healthy == [second.uuid]
        bench.state.xid(0, 95)
        await bench.usable(0, SMALL)
        bench.state.recovery(0, 0)
        await bench.usable(2, SMALL)


async def test_single_isolates_the_odd_gpu_and_says_why(bench):
    for gpu in range(7):
        layout(bench, gpu, "1g.10gb", "1g.10gb")
    with capture_logs() as logs:
        async with bench.daemon(mig_strategy="single", rescan_seconds="1"):
            await bench.usable(14)
            assert "MIG is off" in lines(logs, "withdrawn")[0]["reason"]
            layout(bench, 7)
            await bench.kubelet.until(lambda: len(ids(bench)) == 14, SOON, "the odd GPU gone")
    [remark] = lines(logs, "configuration and machine")
    assert "GPU 7" in remark["reason"]
    assert "it has no instances" in remark["reason"]


async def test_a_gpu_that_is_left_out_is_told_once_and_not_offered(bench):
    with capture_logs() as logs:
        async with bench.daemon(devices_exclude="2", rescan_seconds="1"):
            await bench.usable(7)
            bench.state.lose(5)
            await bench.usable(6)
            bench.state.restore(5)
            await bench.usable(7)
    assert bench.state.snapshot.gpus[2].uuid in lines(logs, "configuration and machine")[0]["reason"]
    assert len(lines(logs, "configuration and machine")) == 1


async def test_mps_waits_for_its_control_daemon_and_tells_where(bench):
    root = bench.folder / "mps"
    text = f"sharing: {{mps: {{resources: [{{name: nvidia.com/gpu, replicas: 2}}]}}}}\nflags: {{mpsRoot: {root}}}\n"
    with capture_logs() as logs:
        async with bench.daemon(config_file=bench.configure(text)):
            await bench.kubelet.until(lambda: len(ids(bench)) == 16, SOON, "the list")
            assert bench.kubelet.allocatable(GPU) == 0
            [withdrawn] = lines(logs, "withdrawn")
            assert f"start one with CUDA_MPS_PIPE_DIRECTORY={root}/nvidia.com/gpu/pipe" in withdrawn["reason"]
            (root / GPU / "pipe").mkdir(parents=True)
            (root / GPU / "pipe/control").touch()
            await bench.usable(16)
            pod = await bench.kubelet.admit("client", GPU, 1)
            assert pod.response.envs["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu/pipe"
            assert {mount.host_path for mount in pod.response.mounts} == {
                f"{root}/nvidia.com/gpu/pipe",
                f"{root}/shm",
            }
            (root / GPU / "pipe/control").unlink()
            await bench.usable(0)


async def test_the_document_has_indices_where_devices_are_called_by_them(bench):
    async with bench.daemon(device_id_strategy="index"):
        await bench.usable(8)
        pod = await bench.kubelet.admit("one", GPU, 1)
        [name] = [device.name for device in pod.response.cdi_devices]
        assert name.partition("=")[2] in {device["name"] for device in json.loads(bench.cdi.read_text())["devices"]}
        assert name in {f"gpuplugin.io/gpu={index}" for index in range(8)}


async def test_kubelet_is_given_the_nodes_where_it_shall(bench):
    layout(bench, 0, "3g.40gb")
    async with bench.daemon(mig_strategy="mixed", device_list_strategy="volume-mounts", pass_device_specs="true"):
        await bench.usable(1, BIG)
        pod = await bench.kubelet.admit("one", BIG, 1)
        paths = [node.container_path for node in pod.response.devices]
        assert {"/dev/nvidiactl", "/dev/nvidia0"} <= set(paths)
        assert len([path for path in paths if path.startswith("/dev/nvidia-caps/")]) == 2
        assert not bench.cdi.exists()
