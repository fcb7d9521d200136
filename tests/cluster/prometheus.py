"""Debian's Prometheus, scraping the daemon every second with the rules that we ship."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final, Self

from gpunode import CHECKOUT
from onenode import Cluster

RULES: Final = CHECKOUT / "monitoring" / "gpuplugin-rules.yaml"
ADDRESS: Final = "127.0.0.1:19090"
SECONDS: Final = 60.0

Samples = dict[tuple[str, ...], float]


class Prometheus:
    """A process of its own, which ends with the context. target: address and port to scrape."""

    def __init__(self, cluster: Cluster, folder: Path, target: str) -> None:
        self._cluster = cluster
        self._folder, self._log = folder / "prometheus", folder / "prometheus.log"
        self._folder.mkdir()
        self._config = folder / "prometheus.json"
        job = {"job_name": "gpuplugin", "static_configs": [{"targets": [target]}]}
        settings = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        self._config.write_text(json.dumps({"global": settings, "rule_files": [str(RULES)], "scrape_configs": [job]}))
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def is_missing() -> bool:
        """Whether this machine has none."""
        return shutil.which("prometheus") is None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "prometheus", f"--config.file={self._config}"),
                    *(f"--storage.tsdb.path={self._folder}", f"--web.listen-address={ADDRESS}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def query(self, query: str, *labels: str) -> Samples:
        """The answer to a query at this moment, by the values of those labels ("" where one is not there)."""
        answer = self._ask("query", query=query)["result"]
        found = {tuple(one["metric"].get(label, "") for label in labels): float(one["value"][1]) for one in answer}
        assert len(found) == len(answer), f"the labels {labels} do not tell the samples apart: {answer}"
        return found

    def alerts(self) -> set[str]:
        """Names of alerts that fire."""
        return {one["labels"]["alertname"] for one in self._ask("alerts")["alerts"] if one["state"] == "firing"}

    def wait(self, query: str, expected: Samples, *labels: str) -> None:
        """Wait until a query has that answer."""
        last: object = None

        def same() -> bool:
            nonlocal last
            last = self.query(query, *labels)
            return last == expected

        try:
            self._cluster.wait_for(lambda: same() or None, SECONDS, f"{query}: {expected}")
        except Exception as error:
            error.add_note(f"--- the last answer\n{last}\n--- Prometheus\n{self._log.read_text()[-2000:]}")
            raise

    @staticmethod
    def _ask(what: str, **parameters: str) -> Any:
        url = f"http://{ADDRESS}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
