"""Each query of the dashboard, asked of a real Prometheus that scrapes a real daemon, has an answer.

What has to happen for that happens here: pods and claims come, one of each is refused, GPUs break.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from gpuplugin.sim.dialled_plugin import Refused
from tests.daemon.conftest import GPU, SOON, bench, folder
from tests.daemon.test_dra import Claims, claims
from tests.monitoring.scraping import Scraping
from tests.monitoring.test_generated import DASHBOARD, EVERY_RULE, names

__all__ = ["bench", "claims", "folder"]
BOARD = json.loads(DASHBOARD.read_text())
LEGENDS = {
    f"{panel['title']} ({panel['id']}{target['refId']})": target["legendFormat"]
    for panel in BOARD["panels"]
    for target in panel.get("targets", [])
}
CHOSEN = {"Hostname": ".*", "gpu": ".*", "__rate_interval": "4s"}  # four scrapes, as Grafana takes it
PATIENCE = 60.0
METRICS = {"metrics_enabled": "true", "metrics_address": "127.0.0.1:0", "metrics_interval_seconds": "0.5"}


def queries() -> dict[str, str]:
    """By panel and letter, with Grafana's variables filled in."""
    made = {}
    for panel in BOARD["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for name, value in CHOSEN.items():
                query = query.replace(f"${name}", value)
            assert "$" not in query
            made[f"{panel['title']} ({panel['id']}{target['refId']})"] = query
    return made


async def answered(prometheus: Scraping, wanted: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The answers of those queries, once each has had one; numbers, not "NaN"."""
    found: dict[str, list[dict[str, Any]]] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while len(found) < len(wanted):
                for name in wanted.keys() - found.keys():
                    with suppress(OSError):  # it has only begun
                        series = await asyncio.to_thread(prometheus.series, wanted[name])
                        if series and not all(math.isnan(float(one["value"][1])) for one in series):
                            found[name] = series
                await asyncio.sleep(0.5)
    missing = {name: wanted[name] for name in wanted.keys() - found.keys()}
    assert not missing, f"no answer to {json.dumps(missing, indent=1)}\n{prometheus.log.read_text()[-1000:]}"
    return found


async def keep_going(claims: Claims) -> None:
    """Bring about what counters count, once a second: pods, refusals, a claim that is not there, an error, an XID."""
    while True:
        await claims.bench.kubelet.admit("comes-and-goes", GPU, 1)
        claims.bench.kubelet.release("comes-and-goes")
        with suppress(Refused):
            await claims.bench.kubelet._plugin(GPU).allocate(("GPU-of-another-machine",))
        await claims.call("Prepare", "no-such-claim", "uid-none")
        claims.bench.state.fail("nvmlDeviceGetTemperature", 999, gpu=1, times=1)
        claims.bench.state.xid(2, 13)
        await asyncio.sleep(1)


async def test_every_query_of_the_dashboard_has_an_answer(claims: Claims, tmp_path: Path):
    given_by_claim = [claims.uuid(6), claims.uuid(7)]
    with capture_logs() as logs:
        async with claims.daemon(",".join(given_by_claim), **METRICS):
            await claims.bench.usable(6)
            async with asyncio.timeout(SOON):
                while not (port := [line["port"] for line in logs if line["event"] == "metrics are served"]):
                    await asyncio.sleep(0.05)
            with Scraping(tmp_path, f"127.0.0.1:{port[0]}") as prometheus:
                assert (await claims.bench.kubelet.admit("two", GPU, 2)).admitted
                claims.bench.state.lose(5)
                claims.bench.state.recovery(3, 1)
                going = asyncio.create_task(keep_going(claims))
                try:
                    found = await answered(prometheus, queries())
                    for variable in ("Hostname", "gpu"):
                        [query] = [
                            one["query"]["query"] for one in BOARD["templating"]["list"] if one["name"] == variable
                        ]
                        series = query.removeprefix("label_values(").rpartition(",")[0].replace("$Hostname", ".*")
                        assert prometheus.label_values(variable, series), query
                    asked = set().union(*(names(rule["expr"]) for rule in EVERY_RULE))
                    absent = {name for name in asked if not await asyncio.to_thread(prometheus.series, name)}
                    assert absent == set(), "series of rules"
                    assert not going.done(), going
                finally:
                    going.cancel()
                    await asyncio.wait([going])
    reasons = {one["metric"]["reason"] for name, series in found.items() if "why" in name for one in series}
    assert any("GPU_IS_LOST" in reason for reason in reasons), reasons
    for name, (legend, series) in {name: (LEGENDS[name], found[name]) for name in found}.items():
        labels = set(re.findall(r"\{\{(\w+)\}\}", legend)) - {"GPU_I_PROFILE", "GPU_I_ID"}  # of MIG devices alone
        assert all(labels <= one["metric"].keys() for one in series), name


def test_every_recording_is_on_the_dashboard():
    shown = " ".join(queries().values()) + " ".join(rule["expr"] for rule in EVERY_RULE)
    assert [rule["record"] for rule in EVERY_RULE if "record" in rule and rule["record"] not in shown] == []
