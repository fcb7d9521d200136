import asyncio
import json
import time

from structlog.testing import capture_logs

SOON = 20
SETTINGS = "kubelet's settings"


async def until(condition) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def configure(bench, **settings):
    text = json.dumps({"kind": "KubeletConfiguration", **settings})
    new = bench.folder / "config.new"
    new.write_text(text)
    new.replace(bench.folder / "config.yaml")


async def test_kubelets_settings_are_shown_and_warned_of_again_when_they_change(bench):
    configure(bench, topologyManagerPolicy="none", reservedSystemCPUs="0-1")
    with capture_logs() as logs:

        def told():
            return [entry for entry in logs if entry["event"] == SETTINGS]

        async with bench.daemon(rescan_seconds="1"):
            await until(lambda: len(told()) == 2)
            shown, warned = told()
            assert (shown["topologyManagerPolicy"], shown["reservedSystemCPUs"]) == ("none", [0, 1])
            assert shown["read_from"] == ["/var/lib/kubelet/config.yaml"]
            assert warned["log_level"] == "warning"
            assert warned["reason"].startswith("topologyManagerPolicy is none")

            configure(bench, topologyManagerPolicy="restricted")
            await until(lambda: len(told()) == 5)
            shown, warned, info = told()[2:]
            assert (shown["topologyManagerPolicy"], shown["reservedSystemCPUs"]) == ("restricted", None)
            assert "cpuManagerPolicy is none" in warned["reason"]
            assert (info["log_level"], "memoryManagerPolicy is None" in info["reason"]) == ("info", True)


async def test_settings_that_cannot_be_seen_are_said_to_be(bench):
    with capture_logs() as logs:
        async with bench.daemon():
            await until(lambda: any("cannot be seen" in entry["event"] for entry in logs))
            assert [entry for entry in logs if entry["event"] == SETTINGS] == []
