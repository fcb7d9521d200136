"""The cluster as a test sees it: up and down, its programs stopped and started, its pods waited for."""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from onenode import configuration
from onenode.api import Api, Json
from onenode.binaries import binaries
from onenode.components import INSIDE, NAMESPACE_MARK, Component, command
from onenode.credentials import write_authority, write_credentials
from onenode.errors import (
    ApiError,
    CommandError,
    MachineLacksError,
    NotInTimeError,
    OccupiedError,
    PodEndedError,
)
from onenode.image import archive
from onenode.layout import (
    HOST,
    IMAGE,
    KUBELET_FOLDER,
    KUBELET_HEALTH_PORT,
    KUBELET_OWNER,
    KUBELET_PORT,
    LOCK,
    NODE,
    Layout,
    state_folder,
)
from onenode.machine import BUSYBOX, SYSTEM_PATH, cni_folder, missing
from onenode.pods import busybox_pod
from onenode.processes import Processes
from onenode.settings import ClusterSettings, KubeletSettings
from onenode.traces import note_machine, owner, remove_traces

T = TypeVar("T")
Say = Callable[[str], None]

_START_SECONDS = 120.0
_POD_SECONDS = 150.0
_ENDS = frozenset({"Succeeded", "Failed"})
_LOOK_EVERY = 0.05


class Cluster:
    """One node's Kubernetes on this machine. One at a time: hold `reserved()` while using it.

    `api` talks to it; `settings` is how it was, or will be, started.
    """

    def __init__(self, settings: ClusterSettings | None = None, *, state: Path | None = None, say: Say = print) -> None:
        self.settings = settings or ClusterSettings()
        self.layout = Layout((state or state_folder()).absolute())
        self.api = Api(self.layout)
        self._say = say
        self._processes = Processes(self.layout.run, self.layout.logs)

    @cached_property
    def binaries(self) -> Path:
        """The folder of the programs, kubectl and ctr among them; built where needed."""
        return binaries(self._say)

    # -- as a whole ---------------------------------------------------------

    @contextmanager
    def reserved(self, patience: float = 1800.0) -> Iterator[None]:
        """Keep the machine's one place for a cluster; waits `patience` seconds for another process that has it."""
        with LOCK.open("w") as file:
            end, waited = time.monotonic() + patience, False
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise OccupiedError(f"another process has used the cluster for {patience:g} s") from None
                    if not waited:
                        self._say("another process uses the test cluster: waiting for it")
                    waited = True
                    time.sleep(0.2)
            yield

    def up(self) -> None:
        """Start what doesn't run of the cluster, and wait until its node is ready.

        Raises MachineLacksError, BuildError, OccupiedError where another kubelet has the machine, NotInTimeError.
        """
        if lacking := missing():
            raise MachineLacksError(lacking)
        self._refuse_occupied()
        if not self.is_running or self._started_as() != self._as_text():
            self.down()
            shutil.rmtree(self.layout.logs, ignore_errors=True)
            note_machine(self.layout)
            (self.layout.state / "settings.json").write_text(self._as_text())
        KUBELET_FOLDER.mkdir(parents=True, exist_ok=True)
        KUBELET_OWNER.write_text(str(self.layout.state))
        write_credentials(self.layout)
        self._write_containerd_configuration()
        for component in (Component.ETCD, Component.API_SERVER, Component.NAMESPACE):
            self._spawn(component)
        self.wait_for((self.layout.run / NAMESPACE_MARK).exists, _START_SECONDS, "the node's mount namespace")
        self.start(Component.CONTAINERD)
        self._import_image()
        self._wait_ready(Component.API_SERVER)
        write_authority(self.layout)
        self.configure_kubelet(self.settings.kubelet)
        self._spawn(Component.CONTROLLERS)
        self._spawn(Component.SCHEDULER)
        self.wait_for(self._is_usable, _START_SECONDS, "a ready node and the default namespace's account")

    def down(self) -> None:
        """End the cluster and put the machine back as it was, whatever a crash has left of either."""
        self._processes.stop(*reversed(Component), how=signal.SIGKILL)
        remove_traces(self.layout)

    @property
    def is_running(self) -> bool:
        """Whether any of the cluster's programs runs."""
        return any(self.pid(component) is not None for component in Component)

    @property
    def is_complete(self) -> bool:
        """Whether all of the cluster's programs run."""
        return all(self.pid(component) is not None for component in Component)

    def keep(self) -> None:
        """Have the cluster outlive the sessions of tests that use it, until somebody calls `down`."""
        self._kept.touch()

    @property
    def is_kept(self) -> bool:
        """Whether somebody wants the cluster to stay; what a crashed session has left running is not kept."""
        return self._kept.exists()

    # -- its programs -------------------------------------------------------

    def pid(self, component: Component) -> int | None:
        """The process of a component, if it runs."""
        return self._processes.pid(component)

    def start(self, component: Component) -> None:
        """Start a component and wait until it answers."""
        self._spawn(component)
        self._wait_ready(component)

    def stop(self, component: Component, how: signal.Signals = signal.SIGTERM) -> None:
        """End a component, with `signal.SIGKILL` as a crash would, and wait until it has ended."""
        self._processes.stop(component, how=how)

    def restart(self, component: Component, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop and start a component."""
        self.stop(component, how)
        self.start(component)

    def configure_kubelet(self, settings: KubeletSettings) -> None:
        """Have the kubelet run with `settings`; it is restarted only where they are others than it has."""
        self.settings = replace(self.settings, kubelet=settings)
        text = configuration.kubelet(self.layout, settings)
        file = self.layout.kubelet_config
        if not file.exists() or file.read_text() != text:
            self.stop(Component.KUBELET)
            for remembered in (
                "cpu_manager_state",  # a kubelet refuses those two of other policies
                "memory_manager_state",
                "device-plugins/kubelet_internal_checkpoint",  # pods that have ended still hold devices in it
            ):
                (KUBELET_FOLDER / remembered).unlink(missing_ok=True)
            file.write_text(text)
        self.start(Component.KUBELET)

    # -- its node -----------------------------------------------------------

    def node(self) -> Json:
        """The Node object."""
        return self.api.get("Node", NODE)

    def allocatable(self) -> dict[str, str]:
        """What the node has for pods, by resource name, as Kubernetes writes quantities."""
        amounts: dict[str, str] = self.node()["status"]["allocatable"]
        return amounts

    def ask_kubelet(self, path: str) -> str:
        """What the kubelet itself serves at `path`: `/configz`, `/metrics`, `/metrics/cadvisor`, `/healthz`."""
        trust = ssl._create_unverified_context()
        with urllib.request.urlopen(f"https://{HOST}:{KUBELET_PORT}{path}", timeout=10, context=trust) as answer:
            content: bytes = answer.read()
        return content.decode()

    def enter_command(self, program: Sequence[str]) -> list[str]:
        """A command that runs `program` in the node's mount namespace, where the NUMA overlay is."""
        pid = self.pid(Component.NAMESPACE)
        if pid is None:
            raise CommandError(program, -1, "the node's mount namespace is not there: the cluster is down")
        return ["nsenter", f"--mount=/proc/{pid}/ns/mnt", "--", *program]

    def enter(self, *program: str, text: str | None = None) -> str:
        """Run a program in the node's mount namespace and return what it printed; CommandError where it fails."""
        return self._output(self.enter_command(program), text)

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl as the administrator, `text` its input; CommandError where it fails."""
        return self._output(
            [str(self.binaries / "kubectl"), f"--kubeconfig={self.layout.admin_kubeconfig}", *arguments], text
        )

    # -- its pods -----------------------------------------------------------

    def exec(self, pod: str, *program: str, container: str = "main", namespace: str = "default") -> str:
        """Run a program in a pod's container and return what it printed; CommandError where it fails."""
        return self.kubectl("exec", f"--namespace={namespace}", pod, f"--container={container}", "--", *program)

    def run(self, name: str, *command: str, limits: Mapping[str, str | int] | None = None, **spec: Any) -> str:
        """Run `busybox_pod(...)` to its end and return what it printed; PodEndedError where it fails."""
        self.api.apply(busybox_pod(name, *command, limits=limits, **spec))
        self.wait_for_phase(name, "Succeeded")
        return self.api.log(name)

    def wait_for_phase(
        self, name: str, *phases: str, seconds: float = _POD_SECONDS, namespace: str = "default"
    ) -> Json:
        """The pod, once it is in one of `phases`; PodEndedError where it ends in another."""

        def arrived() -> Json | None:
            pod = self.api.get("Pod", name, namespace=namespace)
            phase = pod["status"]["phase"]
            if phase in phases:
                return pod
            if phase in _ENDS:
                raise PodEndedError(pod, self._log_if_any(name, namespace))
            return None

        return self.wait_for(arrived, seconds, f"pod {name} {' or '.join(phases)}")

    def wait_for(self, predicate: Callable[[], T | None], seconds: float, what: str) -> T:
        """The predicate's first true answer; NotInTimeError, with the logs' tails, after `seconds`.

        No server, an object or a field that is not there yet: all of that is "not yet".
        """
        end = time.monotonic() + seconds
        last: object = None
        while True:
            try:
                if answer := predicate():
                    return answer
                last = answer
            except (OSError, LookupError, ApiError) as error:
                last = error
            if time.monotonic() > end:
                raise NotInTimeError(what, seconds, last, self.log_tails())
            time.sleep(_LOOK_EVERY)

    def log_tails(self) -> dict[str, str]:
        """The last lines that each component has logged."""
        return {str(component): tail for component in Component if (tail := self._processes.tail(component))}

    # -- inside -------------------------------------------------------------

    @property
    def _kept(self) -> Path:
        return self.layout.state / "kept"

    def _spawn(self, component: Component) -> None:
        program = command(component, self.binaries, self.layout, self.settings)
        program = self.enter_command(program) if component in INSIDE else program
        self._processes.start(component, program, path=f"{self.binaries}:{SYSTEM_PATH}")

    def _wait_ready(self, component: Component) -> None:
        checks: Mapping[Component, Callable[[], bool]] = {
            Component.API_SERVER: lambda: self.api.request("GET", "/readyz") == b"ok",
            Component.CONTAINERD: lambda: _listens(self.layout.containerd_socket),
            Component.KUBELET: self._kubelet_serves,
        }
        if component in checks:
            self.wait_for(checks[component], _START_SECONDS, f"{component} ready")

    def _kubelet_serves(self) -> bool:
        with urllib.request.urlopen(f"http://{HOST}:{KUBELET_HEALTH_PORT}/healthz", timeout=5) as answer:
            return answer.status == 200 and _listens(KUBELET_FOLDER / "device-plugins" / "kubelet.sock")

    def _is_usable(self) -> bool:
        conditions = self.node()["status"]["conditions"]
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        return (
            ready and self.api.exists("ServiceAccount", "default") and self.api.exists("ConfigMap", "kube-root-ca.crt")
        )

    def _refuse_occupied(self) -> None:
        if not KUBELET_FOLDER.exists() or not any(KUBELET_FOLDER.iterdir()):
            return
        holder = owner()
        if holder is None:
            raise OccupiedError(f"{KUBELET_FOLDER} is another kubelet's: the test cluster does not touch it")
        if holder != self.layout.state:
            raise OccupiedError(
                f"{KUBELET_FOLDER} is held by the test cluster of {holder}: "
                f"GPUPLUGIN_TEST_CLUSTER_STATE={holder} python tests/cluster/rig.py down"
            )

    def _write_containerd_configuration(self) -> None:
        plugins = cni_folder()
        assert plugins is not None
        network = self.layout.state / "cni" / "10-test.conflist"
        network.parent.mkdir(exist_ok=True)
        network.write_text(configuration.pod_network(self.layout))
        self.layout.containerd_config.write_text(configuration.containerd(self.layout, plugins))

    def _import_image(self) -> None:
        ctr = [str(self.binaries / "ctr"), f"--address={self.layout.containerd_socket}", "--namespace=k8s.io"]
        if IMAGE in self._output([*ctr, "images", "list", "--quiet"]).split():
            return
        file = self.layout.state / "busybox.tar"
        file.write_bytes(archive(IMAGE, BUSYBOX.read_bytes()))
        self.enter(*ctr, "images", "import", str(file))

    def _log_if_any(self, pod: str, namespace: str) -> str:
        try:
            return self.api.log(pod, namespace=namespace)
        except ApiError as error:
            return f"(no log: {error})"

    def _output(self, program: Sequence[str], text: str | None = None) -> str:
        done = subprocess.run(program, input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CommandError(program, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def _as_text(self) -> str:
        return json.dumps(
            {
                "binaries": str(self.binaries),
                "numa_nodes": self.settings.numa_nodes,
                "feature_gates": dict(self.settings.feature_gates),
                "api_versions": dict(self.settings.api_versions),
            }
        )

    def _started_as(self) -> str:
        try:
            return (self.layout.state / "settings.json").read_text()
        except OSError:
            return ""


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    return True
