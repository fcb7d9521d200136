"""What is wrong only in view of other settings, each with the words that people read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.config import Config, load
from gpuplugin.config.crosschecks import MESSAGE_BYTES, MOST_GPUS, MOST_MIG_DEVICES, list_bytes
from gpuplugin.config.settings import Devices
from gpuplugin.deviceplugin.response import device_list
from gpuplugin.errors import ConfigError
from gpuplugin.model.health import DeviceHealth, Level
from gpuplugin.model.ids import DeviceId, GpuUuid, NumaId, ResourceName
from gpuplugin.plan.desired import OfferedDevice, OfferedResource
from gpuplugin.plan.sharing import Kind, Share

GPU = "{name: nvidia.com/gpu, replicas: 4}"
GPU_UUID = "GPU-" + "0" * 36
MIG_UUID = f"MIG-{GPU_UUID}/00/00"
SMALL = "{name: nvidia.com/mig-1g.10gb, replicas: 4}"


@pytest.fixture
def loaded(tmp_path):
    def of(text: str) -> Config:
        path = tmp_path / "c.yaml"
        path.write_text(text)
        return load(path, {}, {})

    return of


@pytest.fixture
def problems(loaded):
    def of(text: str) -> list[tuple[str, str]]:
        with pytest.raises(ConfigError) as caught:
            loaded(text)
        return [(problem.key, f"{problem.allowed}. {problem.advice}") for problem in caught.value.problems]

    return of


def slicing(*entries, **section):
    more = "".join(f"\n    {key}: {value}" for key, value in section.items())
    return f"sharing:\n  timeSlicing:\n    resources: [{', '.join(entries)}]{more}\n"


MISTAKES = {
    "both ways of sharing": (
        f"sharing: {{timeSlicing: {{resources: [{GPU}]}}, mps: {{resources: [{GPU}]}}}}",
        ("sharing.mps", "one of the two. A device is shared in one way"),
    ),
    "MPS with MIG": (
        f"flags: {{migStrategy: mixed}}\nsharing: {{mps: {{resources: [{GPU}]}}}}",
        ("flags.migStrategy", "none, single. MPS is for whole GPUs"),
    ),
    "a resource twice": (
        slicing(GPU, GPU),
        ("sharing.timeSlicing.resources[1].name", "each resource once. sharing.timeSlicing.resources[0] has it"),
    ),
    "a resource that is not": (
        slicing("{name: nvidia.com/gpus, replicas: 4}"),
        ("sharing.timeSlicing.resources[0].name", "nvidia.com/gpu. This node offers nothing of that name"),
    ),
    "a MIG resource without MIG": (
        slicing(SMALL),
        ("sharing.timeSlicing.resources[0].name", "nvidia.com/gpu. With flags.migStrategy none no resource is called"),
    ),
    "a MIG resource where all are called gpu": (
        "flags: {migStrategy: single}\n" + slicing(SMALL),
        ("sharing.timeSlicing.resources[0].name", "nvidia.com/gpu. With flags.migStrategy single no resource"),
    ),
    "a resource of which nothing is left": (
        "resources: {gpus: [{pattern: '*', name: big}]}\n" + slicing(GPU),
        ("sharing.timeSlicing.resources[0].name", "nvidia.com/big. This node"),
    ),
    "two resources under one name": (
        "flags: {migStrategy: mixed}\n"
        + slicing(
            "{name: nvidia.com/gpu, replicas: 4, rename: part}",
            "{name: nvidia.com/mig-1g.10gb, replicas: 2, rename: part}",
        ),
        ("sharing.timeSlicing.resources[1].rename", "a name that is free. Another resource is called so"),
    ),
    "a rename to what others are called": (
        "resources: {gpus: [{pattern: '*L40S', name: l40s}]}\n"
        + slicing("{name: nvidia.com/gpu, replicas: 4, rename: l40s}"),
        ("sharing.timeSlicing.resources[0].rename", "a name that is free. Another"),
    ),
    "a name that gets too long": (
        f"resources: {{gpus: [{{pattern: '*', name: {'a' * 50}}}]}}\n"
        + slicing(f"{{name: {'a' * 50}, replicas: 2}}", renameByDefault="true"),
        (
            "sharing.timeSlicing.resources[0].name",
            "a name of at most 63 characters with .shared. renameByDefault makes",
        ),
    ),
    "a spread that nothing can need": (
        slicing("{name: gpu, replicas: 2, spread: required}", failRequestsGreaterThanOne="true"),
        (
            "sharing.timeSlicing.resources[0].spread",
            "preferred. sharing.timeSlicing.failRequestsGreaterThanOne lets no",
        ),
    ),
    "more clients than MPS takes": (
        "sharing: {mps: {resources: [{name: gpu, replicas: 49}]}}",
        ("sharing.mps.resources[0].replicas", "at most 48. MPS takes no more clients on any GPU"),
    ),
    "more replicas than one message has room for": (
        slicing("{name: gpu, replicas: 4096}"),
        ("sharing.timeSlicing.resources[0].replicas", "at most 3871. With 16 GPUs the list would have 4438688 bytes"),
    ),
    "more replicas of MIG devices than one message has room for": (
        "flags: {migStrategy: single}\n" + slicing("{name: gpu, replicas: 1000}"),
        ("sharing.timeSlicing.resources[0].replicas", "With 112 MIG devices the list would have"),
    ),
    "a pattern of MIG devices that an earlier one covers": (
        "flags: {migStrategy: mixed}\nresources: {mig: [{pattern: '*', name: a}, {pattern: 1g.10gb, name: b}]}",
        ("resources.mig[1].pattern", "a pattern that no earlier entry covers. The first match counts"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_key_and_what_to_do(problems, mistake):
    text, (key, words) = MISTAKES[mistake]
    [(found, said)] = problems(text)
    assert found == key
    assert words in said


def test_a_problem_names_its_line(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(slicing(GPU, GPU))
    with pytest.raises(ConfigError, match=r"c\.yaml:3: sharing\.timeSlicing\.resources\[1\]\.name"):
        load(path, {}, {})


@pytest.mark.parametrize(
    "text",
    [
        slicing(GPU),
        slicing("{name: nvidia.com/gpu, replicas: 4, rename: nvidia.com/gpu}"),
        "flags: {migStrategy: mixed}\n" + slicing(GPU, SMALL, "{name: nvidia.com/mig-3g.40gb, replicas: 2}"),
        "flags: {migStrategy: mixed}\nresources: {mig: [{pattern: '1g*', name: s}]}\n"
        + slicing("{name: s, replicas: 2}"),
        "flags: {migStrategy: single}\nresources: {gpus: [{pattern: '*', name: big}]}\n" + slicing(GPU),
        f"flags: {{migStrategy: single}}\nsharing: {{mps: {{resources: [{GPU}]}}}}",
    ],
)
def test_what_makes_sense_together_is_taken(loaded, text):
    loaded(text)


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        ("3", 3),
        ("'03'", 3),
        ("gpu-0DF9C3D4-0000-4A4A-8B8B-000000000001", "GPU-0df9c3d4-0000-4a4a-8b8b-000000000001"),
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("1b:00.0", "0000:1b:00.0"),
        ("'*T4'", "*T4"),
        ("Tesla T4", "Tesla T4"),
    ],
)
def test_a_gpu_may_be_left_out_by_any_name(loaded, given_, kept):
    assert loaded(f"devices: {{exclude: [{given_}]}}").devices == Devices(exclude=(kept,))


@pytest.mark.parametrize("given_", ["true", "''", "GPU-0df9c3d4", "MIG-0df9c3d4-0000-4a4a-8b8b-000000000001", "[0]"])
def test_what_names_no_gpu_leaves_none_out(problems, given_):
    [(key, _)] = problems(f"devices: {{exclude: [{given_}]}}")
    assert key == "devices.exclude[0]"


@pytest.mark.parametrize(
    ("given_", "size"), [("1", 1), ("10G", 10 << 30), ("10Gi", 10 << 30), ("512m", 512 << 20), ("8GB", 8 << 30)]
)
def test_a_memory_limit_is_a_size(loaded, given_, size):
    text = f"sharing: {{mps: {{resources: [{GPU}], defaultPinnedDeviceMemoryLimit: {given_}}}}}"
    assert loaded(text).sharing.mps.memory_limit == size


@pytest.mark.parametrize("given_", ["0", "-1", "1.5G", "G", "10X", "10i", "true"])
def test_what_is_no_size_limits_no_memory(problems, given_):
    [(key, _)] = problems(f"sharing: {{mps: {{resources: [{GPU}], defaultPinnedDeviceMemoryLimit: {given_}}}}}")
    assert key == "sharing.mps.defaultPinnedDeviceMemoryLimit"


def longest(devices: int, replicas: int, uuid: str) -> OfferedResource:
    health = DeviceHealth(Level.UNHEALTHY, "XID 79")
    share = Share(Kind.TIME_SLICING, replicas)
    offered = OfferedDevice(DeviceId(uuid), GpuUuid(uuid), 0, 0, health, (NumaId(255),), share=share)
    return OfferedResource(ResourceName("nvidia.com/gpu"), (offered,) * devices)


@given(st.integers(1, 20), st.integers(1, 250), st.sampled_from([GPU_UUID, MIG_UUID]))
def test_the_length_of_a_list_is_exactly_that_of_the_message(devices, replicas, uuid):
    assert device_list(longest(devices, replicas, uuid)).ByteSize() == list_bytes(devices, replicas, uuid)


@pytest.mark.parametrize(("devices", "uuid", "most"), [(MOST_GPUS, GPU_UUID, 3871), (MOST_MIG_DEVICES, MIG_UUID, 487)])
def test_what_is_allowed_has_room_and_one_more_has_not(devices, uuid, most):
    assert device_list(longest(devices, most, uuid)).ByteSize() <= MESSAGE_BYTES
    assert device_list(longest(devices, most + 1, uuid)).ByteSize() > MESSAGE_BYTES


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("log: {level: 5}\ndra: {gpus: all}", ["log.level", "node.name"]),
        (
            "log: {levle: info}\nmetrics: {key: /k}\nnode: {startupTaint: a/b}",
            ["log", "metrics.certificate", "node.name"],
        ),
        (
            "sharing: {mps: {failRequestsGreaterThanOne: true}}\nmetrics: {key: /k}",
            ["sharing.mps.resources", "metrics.certificate"],
        ),
        (
            "devices: {exclude: [true]}\n" + slicing(GPU, GPU),
            ["devices.exclude[0]", "sharing.timeSlicing.resources[1].name"],
        ),
    ],
)
def test_what_cannot_be_read_hides_no_mistake_elsewhere(problems, text, keys):
    assert [key for key, _ in problems(text)] == keys


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("node: {name: 5}\ndra: {gpus: all}", ["node.name"]),
        ("node: {nmae: n}\ndra: {gpus: all}\nevents: {enabled: true}", ["node"]),
        ("nod: {name: n}\ndra: {gpus: all}", [""]),
        ("flags: {migStrategy: mixt}\n" + slicing(SMALL), ["flags.migStrategy"]),
        ("resources: {gpus: [{pattern: a}]}\n" + slicing("{name: a, replicas: 2}"), ["resources.gpus[0].name"]),
        ("metrics: {key: /k, certificate: c}", ["metrics.certificate"]),
    ],
)
def test_what_rests_on_something_that_cannot_be_read_is_not_judged(problems, text, unread):
    assert [key for key, _ in problems(text)] == unread
