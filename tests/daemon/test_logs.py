"""What is written, from which level on, and how that is changed while the daemon runs."""

import asyncio
import functools
import io
import json
import signal
import sys
from pathlib import Path

import pytest
import structlog

from gpuplugin.daemon import logs
from gpuplugin.daemon.reload import ConfigSource, Reload
from gpuplugin.serving import operation
from tests.daemon.conftest import GPU
from tests.daemon.test_node import until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def written():
    """Give the lines so far."""
    stream = io.StringIO()
    before = structlog.get_config()
    logs.configure("info", "json", stream)
    structlog.configure(cache_logger_on_first_use=False)  # or modules would keep on writing here
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    structlog.configure(**before)
    logs.set_level("info")


def events(lines):
    return [line["event"] for line in lines]


def test_a_line_is_one_json_object_with_time_level_and_event(written):
    log = structlog.get_logger()
    log.warning("odd", reason="two\nlines", path=object, error=ValueError("no"))
    (line,) = written()
    assert (line["event"], line["level"], line["reason"], line["error"]) == ("odd", "warning", "two\nlines", "no")
    assert line["timestamp"].endswith("Z")


def test_the_level_is_looked_up_with_each_line(written):
    log = structlog.get_logger()
    log.debug("no")
    logs.set_level("debug")
    log.debug("yes")
    logs.set_level("error")
    log.warning("no")
    log.error("yes too")
    assert events(written()) == ["yes", "yes too"]


def test_debugging_goes_on_and_off_and_ends_with_a_new_level(written):
    log = structlog.get_logger()
    logs.toggle_debug()
    log.debug("yes")
    logs.toggle_debug()
    log.debug("no")
    logs.toggle_debug()
    logs.set_level("info")
    log.debug("no")
    assert events(written()) == ["log level", "yes", "log level", "log level"]


def test_a_reloaded_file_changes_the_level_at_once(written, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("log: {level: info}")
    source = ConfigSource(path, {}, {})
    reload = Reload(source, source.load(), lambda config: None)
    path.write_text("log: {level: debug}")
    reload.read()
    structlog.get_logger().debug("yes")
    assert events(written()) == ["configuration in force", "yes"]


async def test_each_call_has_a_number_of_its_own_in_all_its_lines(written, bench):
    async with bench.daemon():
        await bench.usable(8)
        await bench.kubelet.admit("one", GPU, 1)
        await bench.kubelet.admit("two", GPU, 1)
        await bench.kubelet.until(lambda: events(written()).count("allocated") == 2, 20, "both in the log")
    numbers = [line["operation"] for line in written() if line["event"] == "allocated"]
    assert len(set(numbers)) == 2
    (watch,) = (line["operation"] for line in written() if line["event"] == "kubelet watches")
    assert watch not in numbers
    assert "operation" not in next(line for line in written() if line["event"] == "offering")


async def test_what_is_done_side_by_side_keeps_its_own_number(written):
    log = structlog.get_logger()

    async def work(name):
        number = operation.begin()
        await asyncio.sleep(0)
        log.info(name)
        return number

    first, second = await asyncio.gather(work("first"), work("second"))
    assert {line["event"]: line["operation"] for line in written()} == {"first": first, "second": second}


async def test_the_signal_switches_debugging_on_and_off_in_the_program(folder):
    """As a process: the handler is the program's, and a daemon that had none would end."""
    command = [sys.executable, "-m", "gpuplugin", "run", "--simulate", "hgx-h100", "--simulate-folder", f"{folder}/h"]
    command += [
        "--log-format",
        "json",
        f"--paths-kubelet={folder}",
        f"--paths-cdi={folder}/cdi",
        f"--paths-state={folder}",
    ]
    log = folder / "log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*command, "--rescan-seconds=1", stderr=out, cwd=ROOT)
    said = functools.partial(read, log)
    try:
        await until(lambda: "NVML answers" in said(), "the first look")
        assert "looking" not in said()
        process.send_signal(signal.SIGUSR1)
        await until(lambda: "looking" in said(), "a line for debugging")
        process.send_signal(signal.SIGUSR1)
        await until(lambda: said().count("log level") == 2, "both changes")
    finally:
        process.terminate()
        assert await process.wait() == 0


def read(path):
    return [json.loads(line)["event"] for line in path.read_text().splitlines() if line.startswith("{")]
