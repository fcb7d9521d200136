"""`node.startupTaint` is a taint's key as Kubernetes takes it, or the daemon waits for a taint that can never be."""

import pytest

from gpuplugin.config import Config, load
from gpuplugin.config.given import clip
from gpuplugin.errors import ConfigError

LONGEST_DOMAIN = ".".join(["a" * 63] * 3 + ["a" * 61])


def configured(key):
    return load(None, {"NODE_NAME": "n"}, {"node-startup-taint": key}).node.startup_taint


def test_there_is_none_unless_asked_for():
    assert Config().node.startup_taint == ""
    assert configured("") == ""


@pytest.mark.parametrize(
    "key", ["gpuplugin.io/not-ready", "plain", "A_b.c-1", "a/" + "x" * 63, f"{LONGEST_DOMAIN}/x", "1.2/3"]
)
def test_a_qualified_name_is_kept_as_it_is(key):
    assert configured(key) == key


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("foo bar", ""),
        ("-x", ""),
        ("x.", ""),
        ("x" * 64, ""),
        ("grün", ""),
        ("a/", "The name after the / breaks that"),
        ("a/" + "x" * 64, "The name after the / breaks that"),
        ("/x", "The part before the / breaks that"),
        ("A.com/x", "The part before the / breaks that"),
        ("a_b/x", "The part before the / breaks that"),
        ("a/b/c", "The part before the / breaks that"),
        (f"{LONGEST_DOMAIN}a/x", "The part before the / breaks that"),
        ("a.io/x=true:NoSchedule", "Give the key alone, without the taint's value and effect"),
        ("a.io/x:NoSchedule", "Give the key alone, without the taint's value and effect"),
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(key, advice):
    with pytest.raises(ConfigError) as refused:
        configured(key)
    (problem,) = refused.value.problems
    assert (problem.source, problem.key, problem.value) == ("flag --node-startup-taint", "node.startupTaint", clip(key))
    assert problem.advice == advice
    assert "a name of at most 63 letters, digits" in problem.allowed
    assert "a DNS domain of at most 253" in problem.allowed
