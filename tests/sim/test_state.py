import string
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.errors import MachineFileError
from gpuplugin.sim.snapshot import (
    HEADER,
    DriverRecord,
    EventRecord,
    FaultRecord,
    GpuRecord,
    LinkRecord,
    Loaded,
    MigRecord,
    Snapshot,
)
from gpuplugin.sim.state import EVENTS_KEPT, State, changed

DRIVER = DriverRecord(Loaded.YES, "580.95.05", "13.580.95.05", 13000)
GPUS = tuple(
    GpuRecord(
        n,
        f"GPU-{n}",
        n,
        f"00000000:1{n}:00.0",
        "NVIDIA H100 80GB HBM3",
        9,
        81559 << 20,
        9,
        0,
        mig_current=False,
        mig_pending=False,
    )
    for n in range(2)
)
LINKS = (
    LinkRecord(0, 0, active=True, remote_type=2, remote_bus_id=None),
    LinkRecord(0, 1, active=True, remote_type=0, remote_bus_id=GPUS[1].bus_id),
)
START = Snapshot(DRIVER, GPUS, LINKS)

text = st.text(string.ascii_letters + string.digits + " -+.:/é", min_size=1).filter(lambda value: value != "-")
numbers = st.integers(0, 2**64)
optional = st.none() | numbers
flags = st.booleans()
gpus = st.builds(
    GpuRecord,
    *(numbers, text, optional, text, text, numbers, optional, numbers, numbers, st.none() | flags, st.none() | flags),
    *(optional, text, numbers, numbers, numbers, optional, optional, optional, flags),
)
snapshots = st.builds(
    Snapshot,
    st.builds(DriverRecord, st.sampled_from(Loaded), text, text, numbers),
    st.lists(gpus, max_size=3).map(tuple),
    st.lists(st.builds(LinkRecord, numbers, numbers, flags, numbers, st.none() | text), max_size=3).map(tuple),
    st.lists(st.builds(MigRecord, numbers, numbers, text, *(numbers,) * 5, text, *(numbers,) * 9), max_size=3).map(
        tuple
    ),
    st.lists(st.builds(FaultRecord, numbers, text, optional, optional, optional), max_size=3).map(tuple),
    st.lists(st.builds(EventRecord, numbers, numbers, numbers, optional, optional), max_size=3).map(tuple),
)


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State.create(tmp_path / "nvml.state", START)


@given(snapshots)
def test_what_is_rendered_is_parsed_back(snapshot: Snapshot) -> None:
    assert Snapshot.parse(snapshot.render()) == snapshot


def test_the_file_reads_as_the_c_side_expects(state: State) -> None:
    state.xid(1, 79)
    state.fail("nvmlDeviceGetUUID", 15, gpu=0, times=2)
    state.hang("nvmlDeviceGetCount_v2")
    assert state.path.read_text().split("\n") == [
        "gpuplugin-nvml-state\t1",
        "driver\t1\t580.95.05\t13.580.95.05\t13000",
        *(
            f"gpu\t{n}\tGPU-{n}\t{n}\t00000000:1{n}:00.0\tNVIDIA H100 80GB HBM3\t9\t85520809984\t9\t0\t0\t0\t-\t"
            f"{'0' * 32}\t0\t0\t0\t0\t-\t-\t0"
            for n in range(2)
        ),
        "link\t0\t0\t1\t2\t-",
        "link\t0\t1\t1\t0\t00000000:11:00.0",
        "fault\t2\tnvmlDeviceGetUUID\t0\t15\t2",
        "fault\t3\tnvmlDeviceGetCount_v2\t*\thang\t*",
        "event\t1\t1\t79\t-\t-",
        "",
    ]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["something else"], "line 1"),
        ([HEADER], "0 driver records"),
        ([HEADER, "driver\t1\ta\tb\t1", "driver\t1\ta\tb\t1"], "2 driver records"),
        ([HEADER, "planet\tearth"], "line 2: record 'planet' is not allowed; allowed: driver, gpu,"),
        ([HEADER, "driver\t1\ta\tb"], "line 2: 3 fields in a driver record; allowed: 4"),
        ([HEADER, "driver\tperhaps\ta\tb\t1"], "line 2: driver record: loaded: 'perhaps'"),
        ([HEADER, "driver\t1\ta\tb\t1", "event\t-\t0\t79\t-\t-"], "line 3: event record: seq: '-'"),
        ([HEADER, "driver\t1\ta\tb\t1", "link\t0\t0\t2\t2\t-"], "line 3: link record: active: '2'"),
    ],
)
def test_a_wrong_file_is_refused_by_line_and_field(tmp_path: Path, lines: list[str], said: str) -> None:
    file = tmp_path / "nvml.state"
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(MachineFileError, match=said) as caught:
        State.open(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineFileError, match="cannot be read"):
        State.open(tmp_path / "nvml.state")


@pytest.mark.parametrize("name", ["a\tb", "a\nb", "", "-"])
def test_what_would_break_the_file_is_not_written(state: State, name: str) -> None:
    before = state.path.read_text()
    link = replace(LINKS[1], remote_bus_id=name)
    with pytest.raises(ValueError, match="link record: remote_bus_id cannot be written"):
        state.change(lambda now: replace(now, links=(link,)))
    assert state.path.read_text() == before


def test_gpus_come_and_go(state: State) -> None:
    state.lose(1)
    state.recovery(1, 2)
    assert [(gpu.lost, gpu.recovery) for gpu in state.snapshot.gpus] == [(False, 0), (True, 2)]
    state.restore(1)
    state.recovery(1, None)
    assert [(gpu.lost, gpu.recovery) for gpu in state.snapshot.gpus] == [(False, 0), (False, None)]


def test_the_driver_comes_and_goes(state: State) -> None:
    seen = []
    for loaded in (False, "mismatch", True):
        state.driver(loaded)  # type: ignore[arg-type]
        seen.append(state.snapshot.driver.loaded)
    assert seen == [Loaded.NO, Loaded.MISMATCH, Loaded.YES]


def test_links_go_down_on_one_end_alone(state: State) -> None:
    state.link(0, 1, active=False)
    assert [link.active for link in state.snapshot.links] == [True, False]
    with pytest.raises(LookupError, match="GPU 1 has no NVLink 0"):
        state.link(1, 0, active=False)


def test_a_fabric_is_written_as_hex_digits(state: State) -> None:
    state.fabric(0, 3, "8AF0B8E4-5D2C-4C6B-9F35-E2F1D7A0C111", 4, fabric_health=5)
    gpu = state.snapshot.gpu(0)
    assert (gpu.fabric_state, gpu.fabric_cluster, gpu.fabric_clique, gpu.fabric_health) == (
        3,
        "8af0b8e45d2c4c6b9f35e2f1d7a0c111",
        4,
        5,
    )


def test_what_names_no_gpu_changes_nothing(state: State) -> None:
    before = state.path.read_text()
    for change in (lambda: state.xid(7, 79), lambda: state.lose(7), lambda: state.fail("nvmlInit", 9, gpu=7)):
        with pytest.raises(LookupError, match=r"no GPU has index 7; there are \[0, 1\]"):
            change()
    assert state.path.read_text() == before


def test_faults_are_healed_by_call_or_all_at_once(state: State) -> None:
    for call in ("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetUUID"):
        state.fail(call, 999)
    state.heal("nvmlDeviceGetUUID")
    assert [fault.call for fault in state.snapshot.faults] == ["nvmlDeviceGetName"]
    state.heal()
    assert state.snapshot.faults == ()


def test_no_number_is_given_twice_even_after_healing_and_starting_anew(state: State) -> None:
    given_out = [state.fail("nvmlDeviceGetName", 999), state.xid(0, 79)]
    state.heal()
    given_out.append(state.hang("nvmlDeviceGetName"))
    again = State.create(state.path, START)
    given_out += [again.xid(0, 31), again.fail("nvmlDeviceGetName", 999)]
    assert given_out == sorted(set(given_out))


def test_only_the_newest_events_are_kept(state: State) -> None:
    numbers = [state.xid(0, 13) for _ in range(EVENTS_KEPT + 5)]
    assert [event.seq for event in state.snapshot.events] == numbers[5:]


def test_every_change_is_seen_in_the_files_identity(state: State) -> None:
    seen = set()
    for n in range(50):
        state.update(0, lost=bool(n % 2))
        stat = state.path.stat()
        seen.add((stat.st_ino, stat.st_mtime_ns, stat.st_size))
    assert len(seen) == 50


def test_a_change_leaves_no_litter(state: State) -> None:
    state.lose(0)
    with pytest.raises(ZeroDivisionError):
        state.change(lambda now: 1 // 0)
    assert sorted(file.name for file in state.path.parent.iterdir()) == ["nvml.state", "nvml.state.lock"]


def test_a_wait_in_this_process_is_woken(state: State) -> None:
    condition = changed(state.path.parent / "." / state.path.name)
    assert condition is changed(state.path)


WRITER = """
import sys
from pathlib import Path
from gpuplugin.sim.state import State
state, xid = State.open(Path(sys.argv[1])), int(sys.argv[2])
for _ in range(20):
    state.xid(0, xid)
    state.fail("nvmlDeviceGetName", xid)
"""


def test_processes_that_write_at_once_lose_nothing(state: State) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, state.path, xid]) for xid in ("13", "31")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    now = state.snapshot
    numbers = [event.seq for event in now.events] + [fault.id for fault in now.faults]
    assert sorted(numbers) == list(range(1, 81))
    assert [event.seq for event in now.events] == sorted(event.seq for event in now.events)
    assert sorted(event.xid for event in now.events) == [13] * 20 + [31] * 20
