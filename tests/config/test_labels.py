"""What labels need of the rest of the configuration."""

from __future__ import annotations

import pytest

from gpuplugin.config import load
from gpuplugin.errors import ConfigError

NODE = {"NODE_NAME": "here"}


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"GPUPLUGIN_LABELS_OWNER": "node"}, "node.name"),
        ({"GPUPLUGIN_LABELS_TOPOLOGY_OBJECT": "true"}, "node.name"),
        (NODE | {"GPUPLUGIN_LABELS_OWNER": "nfd-object"}, "labels.namespace"),
        (
            NODE | {"GPUPLUGIN_LABELS_OWNER": "nfd-object", "NAMESPACE": "a", "USE_NODE_FEATURE_API": "false"},
            "flags.useNodeFeatureAPI",
        ),
        ({"GPUPLUGIN_LABELS_OWNER": "nfd-file", "GFD_OUTPUT_FILE": ""}, "flags.gfd.outputFile"),
    ],
)
def test_what_is_missing_is_told(given, key):
    with pytest.raises(ConfigError) as caught:
        load(None, given, {})
    (problem,) = caught.value.problems
    assert problem.key == key
    assert problem.source
    assert problem.advice


@pytest.mark.parametrize(
    "given",
    [
        NODE | {"GPUPLUGIN_LABELS_OWNER": "node", "USE_NODE_FEATURE_API": "false"},
        NODE | {"GPUPLUGIN_LABELS_OWNER": "nfd-object", "NAMESPACE": "a"},
        {"GPUPLUGIN_LABELS_OWNER": "nfd-file", "GFD_OUTPUT_FILE": "/f", "GFD_ONESHOT": "true"},
        {"USE_NODE_FEATURE_API": "false", "GFD_NO_TIMESTAMP": "true"},
    ],
)
def test_what_goes_together_is_taken(given):
    load(None, given, {})
