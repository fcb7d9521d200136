"""Which GPUs claims hand out, as configured; and that an index, which moves, is no way to say it."""

import pytest

from gpuplugin.config import Config, load
from gpuplugin.errors import ConfigError

UUID = "GPU-" + "-".join("0" * length for length in (8, 4, 4, 4, 12))


def configured(*gpus):
    return load(None, {"NODE_NAME": "n"}, {"dra-gpus": list(gpus)}).dra


def test_no_gpu_is_for_claims_unless_asked_for():
    assert Config().dra.gpus == ()


@pytest.mark.parametrize(("given", "kept"), [("all", "*"), (UUID, UUID), ("1b:00.0", "0000:1b:00.0"), ("*H100*",) * 2])
def test_gpus_are_named_in_one_form(given, kept):
    assert configured(given).gpus == (kept,)


def test_index_is_refused_since_it_moves():
    with pytest.raises(ConfigError) as refused:
        configured("3")
    assert "allowed: all, a GPU's UUID or PCI address" in str(refused.value)
    assert "moves when a GPU is lost" in str(refused.value)


@pytest.mark.parametrize("name", ["none", "None", " NONE "])
def test_none_is_refused_since_it_would_be_a_model(name):
    with pytest.raises(ConfigError) as refused:
        configured(name)
    assert refused.value.problems[0].key == "dra.gpus[0]"
    assert "for no GPU leave the key out, or give an empty list" in str(refused.value)


def test_an_empty_list_is_no_gpu(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("version: v1\ndra:\n  gpus: []\n")
    assert load(path, {}, {}).dra.gpus == ()


def test_claims_need_the_nodes_name():
    with pytest.raises(ConfigError) as refused:
        load(None, {"GPUPLUGIN_DRA_GPUS": "all"}, {})
    assert refused.value.problems[0].key == "node.name"
    assert "NODE_NAME" in str(refused.value)
