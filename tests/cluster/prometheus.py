"""Debian's Prometheus beside the cluster, and waiting for what it knows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from onenode import Cluster

from tests.monitoring.scraping import Samples, Scraping

SECONDS: Final = 60.0


class Prometheus(Scraping):
    """target: address and port to scrape."""

    def __init__(self, cluster: Cluster, folder: Path, target: str) -> None:
        super().__init__(folder, target)
        self._cluster = cluster

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
            error.add_note(f"--- the last answer\n{last}\n--- Prometheus\n{self.log.read_text()[-2000:]}")
            raise
