"""What is kept of refusals: the newest, each once, with the number that the log has."""

from collections.abc import Iterator

import pytest

from gpuplugin.serving import operation, refusals


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    refusals._recent.clear()
    yield
    refusals._recent.clear()


def test_the_same_again_takes_the_place_of_the_one_before():
    refusals.keep("prepare", "a/b", "GPU 1 is lost")
    refusals.keep("Allocate", "nvidia.com/gpu", "no such device")
    first = refusals.recent()[0]
    refusals.keep("prepare", "a/b", "GPU 1 is lost")
    assert [(each.call, each.of) for each in refusals.recent()] == [("Allocate", "nvidia.com/gpu"), ("prepare", "a/b")]
    assert refusals.recent()[-1].at >= first.at
    refusals.keep("prepare", "a/b", "another reason")
    assert len(refusals.recent()) == 3


def test_it_has_the_operation_of_the_logs_lines():
    number = operation.begin()
    refusals.keep("prepare", "a/b", "why")
    assert refusals.recent()[-1].operation == number


def test_the_oldest_go_first():
    for each in range(refusals.KEPT + 1):
        refusals.keep("prepare", f"a/{each}", "why")
    assert [refusals.recent()[place].of for place in (0, -1)] == ["a/1", f"a/{refusals.KEPT}"]
