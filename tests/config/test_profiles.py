"""Which configuration file a node's label chooses."""

import pytest

from gpuplugin.config import load
from gpuplugin.config.profiles import NO_FILE, choose
from gpuplugin.config.settings import Profiles
from gpuplugin.errors import ConfigError, ProfileUnknown

SLICES, WHOLE = "slices", "whole"


def profiles(default="", *fallbacks):
    return Profiles(folder="/available", default=default, fallbacks=fallbacks)


@pytest.mark.parametrize(
    ("label", "available", "settings", "chosen"),
    [
        (SLICES, [SLICES, WHOLE], profiles(), SLICES),
        (SLICES, [SLICES, WHOLE], profiles(WHOLE, "empty"), SLICES),
        ("", [SLICES, WHOLE], profiles(WHOLE, "empty"), WHOLE),
        ("", [SLICES, "default"], profiles("", "named", "single"), "default"),
        ("", [SLICES], profiles("", "named", "single"), SLICES),
        ("", [SLICES, WHOLE], profiles("", "named", "single", "empty"), NO_FILE),
        ("", [], profiles("", "single", "empty"), NO_FILE),
    ],
)
def test_choice(label, available, settings, chosen):
    assert choose(label, available, settings) == chosen


@pytest.mark.parametrize(
    ("label", "available", "settings", "said"),
    [
        (
            "slcies",
            [WHOLE, SLICES],
            profiles(WHOLE, "empty"),
            "is 'slcies', and /available has no such file; it has: s",
        ),
        ("", [SLICES], profiles(WHOLE), "profiles.default is 'whole', and /available has no such file; it has: slices"),
        ("", [SLICES, WHOLE], profiles("", "named", "single"), "no fallback works (named, single); /available has: sl"),
        ("", [], profiles(), "no fallback works (none); /available has: none"),
    ],
)
def test_what_cannot_be_chosen_is_told_with_what_there_is(label, available, settings, said):
    with pytest.raises(ProfileUnknown) as caught:
        choose(label, available, settings)
    assert said in str(caught.value)


def test_the_names_of_the_references_config_manager_work():
    environ = {
        "CONFIG_FILE_SRCDIR": "/available-configs",
        "DEFAULT_CONFIG": "whole",
        "FALLBACK_STRATEGIES": "named,single,empty",
        "NODE_LABEL": "example.com/config",
        "NODE_NAME": "node-1",
    }
    assert load(None, environ, {}).profiles == Profiles(
        folder="/available-configs",
        default="whole",
        fallbacks=("named", "single", "empty"),
        label="example.com/config",
    )


def test_a_node_whose_name_is_not_known_has_no_label():
    with pytest.raises(ConfigError, match=r"node\.name: '' is not allowed; .* set NODE_NAME"):
        load(None, {"CONFIG_FILE_SRCDIR": "/available-configs"}, {})
