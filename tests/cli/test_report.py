"""`gpuplugin report` where it is typed: what goes to standard output, to a file, and where neither can be."""

import io
import json
import os
import subprocess
import sys
import tarfile


def report(*arguments, **more):
    """In a process of its own, without a daemon: the archive then tells of that."""
    command = [sys.executable, "-m", "gpuplugin", "report", *arguments]
    return subprocess.run(command, check=False, stderr=subprocess.PIPE, **more)


def unpacked(archive):
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        return {member.name: files.extractfile(member).read().decode() for member in files}


def test_standard_output_has_the_archive_and_nothing_else():
    ran = report("--output", "-", stdout=subprocess.PIPE)
    assert ran.returncode == 1
    files = unpacked(ran.stdout)
    assert set(files) == {"gpuplugin-report/versions.json", "gpuplugin-report/no-daemon.txt"}
    assert "gpuplugin" in json.loads(files["gpuplugin-report/versions.json"])
    assert b"standard output: 2 files; look through them" in ran.stderr
    assert b"little is in it: GPUPLUGIN_PATHS_STATUS is not set" in ran.stderr


def test_a_terminal_is_sent_no_archive():
    ours, theirs = os.openpty()
    try:
        ran = report("--output", "-", stdout=theirs)
    finally:
        os.close(theirs)
        os.close(ours)
    assert ran.returncode == 1
    assert b"standard output is a terminal" in ran.stderr
    assert b"> report.tar.gz" in ran.stderr


def test_nobody_who_reads_is_said_in_a_line():
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        ran = report("--output", "-", stdout=theirs)
    finally:
        os.close(theirs)
    assert ran.returncode == 1
    assert b"gpuplugin: standard output: Broken pipe" in ran.stderr
    assert b"Traceback" not in ran.stderr


def test_a_folder_that_cannot_be_written_to_is_told_with_the_way_round(cli, tmp_path):
    ran = cli("report", "--output", str(tmp_path / "none" / "report.tar.gz"))
    assert (ran.status, ran.out) == (1, "")
    assert "No such file or directory" in ran.err
    assert "kubectl exec -n NAMESPACE POD -- gpuplugin report --output - > report.tar.gz" in ran.err


def test_a_file_is_for_its_owner_alone(cli, tmp_path):
    path = tmp_path / "report.tar.gz"
    ran = cli("report", "--output", str(path))
    assert str(path) in ran.out
    assert path.stat().st_mode & 0o077 == 0
    assert "gpuplugin-report/versions.json" in unpacked(path.read_bytes())
