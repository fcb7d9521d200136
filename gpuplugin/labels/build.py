"""All labels of a node, from its facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.labels.machine import machine
from gpuplugin.labels.own import DRIVER_READY, own
from gpuplugin.labels.products import products

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.labels.facts import Labels, NodeFacts


def labels(facts: NodeFacts) -> Labels:
    """Give all of them, in order of key; none for a node without a GPU. Equal facts give equal labels."""
    if not facts.gpus:
        return {}
    found = machine(facts) | products(facts) | own(facts)
    return {key: found[key] for key in sorted(found)}


def kept(wanted: Mapping[str, str], there: Mapping[str, str], *, complete: bool) -> Labels:
    """Lay what is wanted over what is there already.

    complete: whether all GPUs could be read. What one has that cannot be read is not known, so nothing is taken away
    for its sake.
    """
    found = dict(wanted) if complete else {**there, **wanted}
    return {key: found[key] for key in sorted(found)}


def without_driver(there: Mapping[str, str]) -> Labels:
    """What is there, with the word that the driver does not answer; nothing else is known to have changed."""
    return {**there, DRIVER_READY: "false"}
