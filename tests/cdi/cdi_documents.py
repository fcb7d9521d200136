"""Documents as plain JSON values for tests: right ones, and right ones with a few things then made wrong."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

from cdi.spec import VERSIONS

PATHS = st.sampled_from(["/dev/nvidia0", "/dev/nvidiactl", "/a"])
ENV = st.lists(st.sampled_from(["A=1", "PATH=/bin", "B="]), min_size=1, max_size=2)
WORDS = st.sampled_from(["a", "bind", "x y", "ä"])
NUMBERS = st.sampled_from([0, 1, 195, 2**31, 2**32 - 1])

ODD_TEXTS = ["", "a", "a=b", "=a", "9", "-", "a-", "ä", "a.b", "a:b", "a/b", "a/b/c", "1.1.0", "v0.7.0", "0.9.0"]
ODD_TEXTS += ["rx", "none", "..", "\n"]
ODD_NUMBERS = (-1, 2**32, 2**63 - 1, 2**63, 0)


def several(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=1, max_size=2)


NODE = st.fixed_dictionaries(
    {"path": PATHS},
    optional={
        "hostPath": PATHS,
        "type": st.sampled_from("bcup"),
        "major": NUMBERS,
        "minor": NUMBERS,
        "fileMode": NUMBERS,
        "permissions": st.sampled_from(["rw", "rwm", "none", "mmm"]),
        "uid": NUMBERS,
        "gid": NUMBERS,
    },
)
MOUNT = st.fixed_dictionaries(
    {"hostPath": PATHS, "containerPath": PATHS}, optional={"options": several(WORDS), "type": WORDS}
)
HOOK = st.fixed_dictionaries(
    {"hookName": st.sampled_from(["createContainer", "prestart", "poststop"]), "path": PATHS},
    optional={"args": several(WORDS), "env": ENV, "timeout": NUMBERS},
)
RDT = st.fixed_dictionaries(
    {},
    optional={
        "closID": st.sampled_from(["x", "/"]),
        "l3CacheSchema": WORDS,
        "memBwSchema": WORDS,
        "schemata": st.lists(WORDS, max_size=1),
        "enableMonitoring": st.booleans(),
    },
)
NET = several(st.sampled_from([{"hostInterfaceName": f"eth{n}", "name": f"e{n}"} for n in range(9)]))
EDITS = {
    "env": ENV,
    "deviceNodes": several(NODE),
    "mounts": several(MOUNT),
    "hooks": several(HOOK),
    "intelRdt": RDT,
    "netDevices": NET,
    "additionalGids": several(NUMBERS),
}
SOME_EDITS = st.sampled_from(sorted(EDITS)).flatmap(
    lambda key: st.fixed_dictionaries(
        {key: EDITS[key]}, optional={other: EDITS[other] for other in ("env", "deviceNodes") if other != key}
    )
)
ANNOTATIONS = st.dictionaries(st.sampled_from(["a", "example.com/B"]), WORDS, max_size=2)
NAMES = st.sampled_from(["gpu0", "GPU-1", "0", "a:b", "x"])
RIGHT = st.fixed_dictionaries(
    {
        "cdiVersion": st.sampled_from([*VERSIONS, *["1.1.0"] * 12]),
        "kind": st.sampled_from(["gpuplugin.io/gpu", "nvidia.com/gpu", "a/b.c", "a/b"]),
        "devices": st.lists(
            st.fixed_dictionaries({"name": NAMES, "containerEdits": SOME_EDITS}, optional={"annotations": ANNOTATIONS}),
            min_size=1,
            max_size=3,
            unique_by=lambda device: device["name"],
        ),
    },
    optional={"annotations": ANNOTATIONS, "containerEdits": SOME_EDITS},
)
"""Documents of the right shape; some say a version that is too low."""


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A right document with none to two things made wrong (or otherwise right).

    Annotation keys stay right: the CDI project's library does not check them, see the head of cdi/validate.py.
    """
    document: dict[str, Any] = deepcopy(draw(RIGHT))  # sampled parts are shared between draws
    for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
        holders = [holder for holder in _holders(document) if holder]
        holder = holders[draw(st.integers(0, len(holders) - 1))]
        _spoil(draw, holder)
    return document


def _holders(value: Any) -> list[Any]:
    """Every object and list in a document that is not annotations."""
    if isinstance(value, dict):
        inner = [part for key, part in value.items() if key != "annotations"]
    elif isinstance(value, list):
        inner = value
    else:
        return []
    return [value, *(found for part in inner for found in _holders(part))]


def _spoil(draw: st.DrawFn, holder: Any) -> None:
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    key = draw(st.sampled_from(keys))
    what = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add", "type"]))
    if what == "replace" and isinstance(holder[key], str):
        holder[key] = draw(st.sampled_from(ODD_TEXTS))
    elif what == "replace" and isinstance(holder[key], int) and not isinstance(holder[key], bool):
        holder[key] = draw(st.sampled_from(ODD_NUMBERS))
    elif what == "type":
        holder[key] = draw(st.sampled_from([{"unknown": "x"}, [["x"]], {}]))
    elif what == "remove":
        del holder[key]
    elif what == "add" and isinstance(holder, dict):
        holder["unknown"] = "x"
    elif isinstance(holder, list):
        holder.append(holder[key])
