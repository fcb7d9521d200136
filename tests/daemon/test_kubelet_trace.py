"""The stand-in kubelet calls what the real one was recorded to call, for the same pods on the same machine."""

from __future__ import annotations

from tests.kubelet_trace import SCENARIO, recorded

GPU = "nvidia.com/gpu"


async def test_stand_in_calls_what_the_real_kubelet_calls(bench):
    async with bench.daemon():
        await bench.usable(8)
        for step in SCENARIO:
            match step.what:
                case "admit":
                    assert (await bench.kubelet.admit(step.name, GPU, step.count)).admitted
                case "refuse":
                    assert not (await bench.kubelet.admit(step.name, GPU, step.count)).admitted
                case "end":
                    bench.kubelet.release(step.name)
                case "lose":
                    bench.state.lose(step.count)
                    await bench.usable(7)
                case "restore":
                    bench.state.restore(step.count)
                    await bench.usable(8)
        assert bench.kubelet.trace == recorded()
