"""What a refused pod's status means, and which refusals of ours it is about."""

from dataclasses import replace

import pytest

from gpuplugin.explain.podfile import PodObject, Said
from gpuplugin.explain.refused import about, means, was_refused
from gpuplugin.model.refusals import Refusal

POD = PodObject("team/x", (), "here", claims=("team/x-gpu-abc",))


@pytest.mark.parametrize(
    ("said", "node", "says", "refused"),
    [
        (Said("Failed", "TopologyAffinityError", ""), "here", "no NUMA nodes for all", True),
        (Said("Failed", "UnexpectedAdmissionError", ""), "here", "could not give a container", True),
        (Said("Failed", "SMTAlignmentError", ""), "here", "whole cores", True),
        (Said("Failed", "OutOfcpu", ""), "here", "too little cpu left", True),
        (Said("Failed", "Evicted", ""), "here", "kubelet did not refuse it", False),
        (Said("Failed", "", ""), "here", "kubelet did not refuse it", False),
        (Said("Pending", "Unschedulable", ""), "", "the scheduler's", False),
        (Said("Pending", "", ""), "here", "do not run yet", False),
        (Said("Running", "", ""), "here", "no GPU of ours", False),
        (Said("Failed", "TopologyAffinityError", ""), "there", "sent to node there, and this is here", True),
    ],
)
def test_in_other_words(said, node, says, refused):
    assert says in means(replace(POD, node=node), said, "here")
    assert was_refused(said) == refused


def refusal(of: str, reason: str) -> Refusal:
    return Refusal(1.0, 7, "Allocate", of, reason)


def test_ours_are_found_by_kubelets_words_and_by_the_claims_name():
    mine, claim = refusal("nvidia.com/gpu", "GPU-1 is lost"), refusal("team/x-gpu-abc", "held by another")
    others = [refusal("nvidia.com/gpu", "GPU-2 is lost"), refusal("team/x-gpu-abcd", "why")]
    said = Said(
        "Failed", "UnexpectedAdmissionError", "Allocate failed due to rpc error: desc = GPU-1 is lost, which is"
    )
    assert about([mine, *others, claim], replace(POD, said=said)) == (mine, claim)
    assert about([mine, *others], POD) == ()
