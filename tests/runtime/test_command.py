"""`gpuplugin runtime` as people run it, on made hosts below --root and with a runtime that answers."""

import asyncio
import json
import shutil
import subprocess
import sys
import threading

import grpc.aio
import pytest

from gpuplugin.__main__ import main
from gpuplugin.pb import cri_v1_pb2 as api
from gpuplugin.pb import cri_v1_pb2_grpc as rpc

CONFIG = "etc/containerd/config.toml"
CRI = '[plugins."io.containerd.grpc.v1.cri"]\n'


class Containerd(rpc.RuntimeServiceServicer):
    """Says what a containerd of that version says; `settings` may be changed at any time."""

    def __init__(self, version, **settings):
        self.name, self.version, self.settings = "containerd", version, settings

    def Version(self, request, context):  # noqa: N802 -- gRPC's name
        return api.VersionResponse(runtime_name=self.name, runtime_version=self.version)

    def Status(self, request, context):  # noqa: N802 -- gRPC's name
        return api.StatusResponse(info={"config": json.dumps(self.settings)})


@pytest.fixture
def speaking(tmp_path):
    """Makes a runtime answer at a socket below the root, on a loop of its own as a process of its own would."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servers = []

    def speak(runtime, socket="run/containerd/containerd.sock"):
        async def start():
            path = tmp_path / socket
            path.parent.mkdir(parents=True, exist_ok=True)
            server = grpc.aio.server()
            rpc.add_RuntimeServiceServicer_to_server(runtime, server)
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            servers.append(server)

        asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        return runtime

    yield speak
    for server in servers:
        asyncio.run_coroutine_threadsafe(server.stop(None), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def command(tmp_path, capsys):
    def run(*arguments):
        status = main(["runtime", *arguments, f"--root={tmp_path}"])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def put(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_off_then_configured_then_restarted(tmp_path, speaking, command):
    runtime = speaking(Containerd("v1.7.29", enableCDI=False, cdiSpecDirs=["/etc/cdi", "/var/run/cdi"]))
    before = f"version = 2\n# mine\n{CRI}enable_cdi = false\n"
    path = put(tmp_path, CONFIG, before)

    status, out, _ = command("check")
    assert status == 1
    assert "containerd v1.7.29\nCDI          off\ndocuments    up to 0.8.0\n" in out
    assert "to do        /etc/containerd/config.toml: switch CDI on (`gpuplugin runtime configure` does it)\n" in out

    status, out, err = command("configure", "--dry-run")
    assert (status, err) == (0, "")
    assert "-enable_cdi = false\n+enable_cdi = true\ndry run: nothing was written\n" in out
    assert path.read_text() == before
    assert list(path.parent.iterdir()) == [path]

    status, out, _ = command("configure")
    assert status == 0
    assert "--- /etc/containerd/config.toml\n+++ /etc/containerd/config.toml\n" in out
    assert "wrote /etc/containerd/config.toml; before: /etc/containerd/config.toml.gpuplugin-backup-" in out
    assert out.endswith("to make it hold, run on the host: systemctl restart containerd\n")
    assert path.read_text() == before.replace("= false", "= true")
    assert len(list(path.parent.iterdir())) == 2

    assert "its files are right: systemctl restart containerd" in command("check")[1]
    status, out, _ = command("configure")
    assert (status, out.splitlines()[0]) == (0, "no change: its files are as they should be")
    assert "systemctl restart containerd" in out  # it still runs with what it read before
    assert len(list(path.parent.iterdir())) == 2

    runtime.settings["enableCDI"] = True
    assert command("check")[0] == 0
    assert command("configure") == (0, "no change: its files are as they should be\n", "")


def test_it_says_when_the_next_restart_would_switch_it_off(tmp_path, speaking, command):
    speaking(Containerd("v1.7.29", enableCDI=True, cdiSpecDirs=["/var/run/cdi"]))
    put(tmp_path, CONFIG, "version = 2\n")
    status, out, _ = command("check")
    assert status == 0
    assert "it works now and will not after a restart: its files do not switch CDI on" in out


def test_json_has_all_that_is_known(speaking, command):
    speaking(Containerd("2.4.2", cdiSpecDirs=["/etc/cdi"]))
    status, out, _ = command("check", "--json")
    assert status == 1
    assert json.loads(out) == {
        "runtimes": [
            {
                "name": "containerd",
                "version": "2.4.2",
                "asked": True,
                "works": False,
                "cdi": True,
                "folders": ["/etc/cdi"],
                "newest_spec": "1.1.0",
                "problems": ["it does not look for CDI documents in /var/run/cdi"],
                "changes": ["its files are right: systemctl restart containerd"],
                "notes": [],
            }
        ]
    }


def test_a_release_without_cdi_is_to_be_updated(speaking, command):
    speaking(Containerd("1.6.20"))
    status, out, _ = command("check")
    assert status == 1
    assert "problem      containerd 1.6.20 has no CDI\nto do        update to a newer release\n" in out


def test_an_unknown_runtime_is_judged_unknown_and_left_alone(speaking, command):
    speaking(Containerd("1.0")).name = "rkt"
    status, out, _ = command("check")
    assert status == 1
    assert "not a runtime that is known here (containerd, crio, docker, podman)" in out
    status, _, err = command("configure")
    assert status == 2
    assert "rkt is not a runtime that is known here" in err


def test_k3s_generated_file_is_not_edited(speaking, command):
    speaking(Containerd("v1.7.29", enableCDI=False), "run/k3s/containerd/containerd.sock")
    status, out, err = command("configure")
    assert (status, out) == (1, "")
    assert "k3s and RKE2 write containerd's file anew at each start; nothing was changed." in err
    assert "config.toml.tmpl" in command("check")[1]


def test_of_two_that_answer_one_must_be_named(speaking, command):
    speaking(Containerd("2.4.2", cdiSpecDirs=["/var/run/cdi"]))
    speaking(Containerd("v2.1.4", enableCDI=True, cdiSpecDirs=["/var/run/cdi"]), "run/crio/crio.sock")
    status, out, _ = command("check")
    assert status == 0
    assert "containerd 2.4.2\n" in out
    assert "containerd v2.1.4\n" in out
    status, _, err = command("configure")
    assert status == 2
    assert "several runtimes answer (/run/containerd/containerd.sock, /run/crio/crio.sock): name one by --socket" in err


def test_folders_that_exist_are_no_sign_of_a_runtime(tmp_path, command):
    put(tmp_path, CONFIG, "version = 2\n")
    put(tmp_path, "etc/crio/crio.conf", "")
    put(tmp_path, "etc/cdi/x.json", "{}")
    for verb in ("check", "configure"):
        status, out, err = command(verb)
        assert (status, out) == (1, "")
        assert "/run/crio/crio.sock" in err
        assert "no such socket; name its CRI socket by --socket" in err


def test_one_that_is_named_is_configured_before_it_ever_ran(tmp_path, command):
    imported = put(tmp_path, "etc/containerd/conf.d/site.toml", f"version = 2\n{CRI}x = 1\n")
    put(tmp_path, CONFIG, "version = 2\nimports = ['conf.d/*.toml']\n")
    status, _, err = command("configure", "--runtime=containerd")
    assert status == 0
    assert "edited as for a release that is not known" in err
    assert imported.read_text() == f"version = 2\n{CRI}x = 1\nenable_cdi = true\n"


MADE = {
    "crio": ("etc/crio/crio.conf.d/10-x.conf", '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n'),
    "docker": ("etc/docker/daemon.json", '{"log-level": "warn"}'),
    "podman": ("etc/containers/containers.conf", "[containers]\n"),
}


@pytest.mark.parametrize("runtime", MADE)
def test_the_second_run_changes_nothing(tmp_path, command, runtime):
    path = put(tmp_path, *MADE[runtime])
    before = path.read_text()
    status, out, _ = command("configure", f"--runtime={runtime}")
    assert status == 0
    assert "wrote /etc/" in out
    after = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    status, out, _ = command("configure", f"--runtime={runtime}")
    assert (status, out) == (0, "no change: its files are as they should be\n")
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == after
    assert before in [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]


@pytest.mark.parametrize("runtime", ["crio", "podman"])
def test_a_file_that_is_named_is_the_one_that_is_edited(tmp_path, command, runtime):
    path = put(tmp_path, "srv/site.conf", "# site\n")
    status, out, _ = command("configure", f"--runtime={runtime}", "--config=/srv/site.conf", "--cdi-folder=/srv/cdi")
    assert (status, "wrote /srv/site.conf" in out) == (0, True)
    assert '"/srv/cdi"]' in path.read_text()
    assert not (tmp_path / "etc").exists()


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--config=config.toml", "--config config.toml must be an absolute path below --root."),
        ("--cdi-folder=cdi", "--cdi-folder cdi must be an absolute path."),
    ],
)
def test_a_path_that_means_nothing_on_the_host_is_refused(command, option, why):
    status, _, err = command("configure", "--runtime=docker", option)
    assert status == 2
    assert why in err


def test_broken_files_are_refused_by_line_and_kept(tmp_path, command):
    path = put(tmp_path, "etc/docker/daemon.json", '{\n  "a": 1,\n}\n')
    status, out, err = command("configure", "--runtime=docker")
    assert (status, out) == (1, "")
    assert err.startswith("gpuplugin: /etc/docker/daemon.json:3: not JSON: ")
    assert list(path.parent.iterdir()) == [path]
    status, out, _ = command("check", "--runtime=docker")
    assert status == 1
    assert "/etc/docker/daemon.json:3: not JSON" in out


@pytest.mark.parametrize("asked", [True, False])
def test_a_restart_is_done_only_when_told(tmp_path, monkeypatch, capsys, asked):
    ran = tmp_path / "ran"
    systemctl = put(tmp_path, "bin/systemctl", f'#!/bin/sh\necho "$@" >> {ran}\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{systemctl.parent}:/usr/bin:/bin")
    config = put(tmp_path, "daemon.json", "{}")
    restart = ["--restart"] if asked else []
    assert main(["runtime", "configure", "--runtime=docker", f"--config={config}", *restart]) == 0
    out = capsys.readouterr().out
    if asked:
        assert ran.read_text() == "restart docker\n"
        assert f"ran {systemctl} restart docker: status 0\n" in out
    else:
        assert not ran.exists()
        assert out.endswith("to make it hold, run: systemctl restart docker\n")


def test_a_restart_that_cannot_be_done_is_said(tmp_path, command):
    put(tmp_path, "etc/docker/daemon.json", "{}")
    status, out, err = command("configure", "--runtime=docker", "--restart")
    assert status == 1
    assert "to make it hold, run on the host: systemctl restart docker" in out
    assert "nothing was restarted" in err


def test_asking_a_runtime_costs_the_daemon_neither_tomlkit_nor_typer():
    code = (
        "import sys, gpuplugin.runtime.cri; print(sorted({'tomlkit', 'typer', 'rich', 'difflib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.go
@pytest.mark.skipif(shutil.which("podman") is None, reason="no podman here to ask for its release")
def test_a_real_podman_says_its_release(capsys):
    main(["runtime", "check", "--runtime=podman", "--json"])
    (verdict,) = json.loads(capsys.readouterr().out)["runtimes"]
    said = subprocess.run([shutil.which("podman"), "--version"], capture_output=True, text=True, check=True).stdout
    assert verdict["version"] in said
    assert verdict["cdi"] is True
