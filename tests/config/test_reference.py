"""Files as people have them for the reference, in each shape that it documents, load here unchanged."""

from pathlib import Path

import pytest

from gpuplugin.config import load
from gpuplugin.config.settings import Config, Flags, PluginFlags, ReplicatedResource

FILES = Path(__file__).parent / "reference"


def loaded(name: str) -> Config:
    return load(FILES / f"{name}.yaml", {}, {})


@pytest.mark.parametrize("path", sorted(FILES.glob("*.yaml")), ids=lambda path: path.stem)
def test_it_loads(path):
    assert load(path, {}, {}).version == "v1"


def test_defaults_that_are_spelled_out_are_the_defaults():
    spelled = loaded("defaults_spelled_out")
    plugin = PluginFlags(device_list_strategy=("envvar",), nvidia_ctk_path="/usr/bin/nvidia-ctk")
    assert spelled.flags == Flags(nvidia_dev_root="/", plugin=plugin)


def test_slices_and_their_names():
    section = loaded("time_slicing").sharing.time_slicing
    assert (section.rename_by_default, section.fail_requests_greater_than_one) == (True, True)
    assert section.resources == (ReplicatedResource("nvidia.com/gpu", 10),)
    assert loaded("mps").sharing.mps.fail_requests_greater_than_one


def test_devices_are_selected_by_index_and_uuid():
    [entry] = loaded("selected_devices").sharing.time_slicing.resources
    assert entry == ReplicatedResource(
        "nvidia.com/gpu",
        3,
        "nvidia.com/gpu-part",
        ("0", "1", "GPU-3b3ebf56-c358-5715-97a4-4f6f012e2903"),
    )


def test_patterns_name_models_and_profiles():
    resources = loaded("names").resources
    assert [resources.gpu(model) for model in ("NVIDIA A100-SXM4-80GB", "Tesla T4")] == [
        "nvidia.com/a100",
        "nvidia.com/gpu",
    ]
    assert [resources.mig_device(profile) for profile in ("1g.10gb+me", "1g.20gb", "3g.40gb")] == [
        "nvidia.com/small-with-media",
        "nvidia.com/small",
        None,
    ]


def test_every_way_of_telling_a_runtime_can_be_combined():
    config = loaded("lists_and_nodes")
    assert config.flags.plugin.device_list_strategy == ("envvar", "cdi-annotations", "cdi-cri")
    assert (config.imex.channel_ids, config.imex.required) == ((0,), True)
