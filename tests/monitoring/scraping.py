"""Debian's Prometheus as a process, scraping one target every second with the rules that we ship."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final, Self

import pytest

RULES: Final = Path(__file__).parents[2] / "monitoring" / "gpuplugin-rules.yaml"

Samples = dict[tuple[str, ...], float]


class Scraping:
    """Ends with the context. target: address and port to scrape. Without Prometheus tests are left out, in CI fail."""

    def __init__(self, folder: Path, target: str) -> None:
        if shutil.which("prometheus") is None:
            why = "left out, scraping: there is no Prometheus; tests/cluster/install has it"
            if os.environ.get("CI", "").lower() == "true":
                pytest.fail(why)
            pytest.skip(why)
        self._folder, self.log = folder / "prometheus", folder / "prometheus.log"
        self._folder.mkdir()
        self._config = folder / "prometheus.json"
        job = {"job_name": "gpuplugin", "static_configs": [{"targets": [target]}]}
        settings = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        self._config.write_text(json.dumps({"global": settings, "rule_files": [str(RULES)], "scrape_configs": [job]}))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "prometheus", f"--config.file={self._config}"),
                    *(f"--storage.tsdb.path={self._folder}", f"--web.listen-address={self._address}"),
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
        answer = self.series(query)
        found = {tuple(one["metric"].get(label, "") for label in labels): float(one["value"][1]) for one in answer}
        assert len(found) == len(answer), f"the labels {labels} do not tell the samples apart: {answer}"
        return found

    def series(self, query: str) -> list[dict[str, Any]]:
        """The series of the answer to a query at this moment: metric, value."""
        found: list[dict[str, Any]] = self._ask("query", query=query)["result"]
        return found

    def alerts(self) -> set[str]:
        """Names of alerts that fire."""
        return {one["labels"]["alertname"] for one in self._ask("alerts")["alerts"] if one["state"] == "firing"}

    def label_values(self, label: str, series: str) -> list[str]:
        """What Grafana's ``label_values(series, label)`` asks for."""
        found: list[str] = self._ask(f"label/{label}/values", **{"match[]": series})
        return found

    def _ask(self, what: str, **parameters: str) -> Any:
        url = f"http://{self._address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
