"""The Grafana dashboard: rows of panels, each a title, a unit and queries of series that the registry has."""

# ruff: noqa: INP001  (a table beside the script that reads it, no package)
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from queries import POD_MEMORY, POD_POWER, POD_UTILIZATION, UTILIZATION, named

from gpuplugin.metrics import registry
from gpuplugin.model.telemetry import Quantity

if TYPE_CHECKING:
    from gpuplugin.metrics.series import Series

WIDTH: Final = 24
DATA_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN: Final = '{Hostname=~"$Hostname", gpu=~"$gpu"}'
DEVICE: Final = "{{Hostname}} GPU {{gpu}} {{GPU_I_PROFILE}} {{GPU_I_ID}}"
POD: Final = "{{namespace}}/{{pod}}"
OURS: Final = f" and on (instance) {registry.BUILD_INFO.name}"


@dataclass(frozen=True, slots=True)
class Panel:
    """queries: by legend · unit: Grafana's name of it · kind: of panel · width: of 24 columns · most: of the axis.

    columns: of a table, from left to right, with their pixels; 0 for what is left.
    """

    title: str
    unit: str
    queries: dict[str, str]
    kind: str = "timeseries"
    width: int = 8
    most: float | None = None
    about: str = ""
    columns: tuple[tuple[str, int], ...] = ()


def device(
    title: str, unit: str, quantity: Quantity, *, most: float | None = None, about: str = "", width: int = 8
) -> Panel:
    """A measured quantity of the chosen devices."""
    return Panel(title, unit, {DEVICE: f"{named(quantity)}{CHOSEN}"}, width=width, most=most, about=about)


def rate(title: str, unit: str, quantity: Quantity, *, factor: str = "", most: float | None = None) -> Panel:
    """What a counter of the chosen devices grows by a second."""
    return Panel(title, unit, {DEVICE: f"rate({named(quantity)}{CHOSEN}[$__rate_interval]){factor}"}, most=most)


def told(title: str, series: Series, width: int, about: str, *columns: tuple[str, int]) -> Panel:
    """A table of what an info series tells in its labels, and of nobody else's labels."""
    names = ", ".join(name for name, _ in columns)
    query = f"max by ({names}) ({series.name}) == 1"
    return Panel(title, "none", {"": query}, "table", width, about=about, columns=columns)


def summed(series: Series, *labels: str) -> str:
    """What a counter grows by a second on all nodes together."""
    return f"sum by ({', '.join(labels)}) (rate({series.name}[$__rate_interval]))"


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "At a glance": (
        Panel("GPUs measured", "none", {"": f'sum({registry.GPUS_MEASURED.name}{{measured="yes"}})'}, "stat", 4),
        Panel("Devices withdrawn", "none", {"": f"sum({registry.DEVICE_HEALTHY.name} == bool 0)"}, "stat", 4),
        Panel("GPUs free", "none", {"": f"sum({registry.FREE_GPUS.name})"}, "stat", 4),
        Panel("Power", "watt", {"": f"sum({named(Quantity.POWER)}{CHOSEN})"}, "stat", 4),
        Panel("Busy", "percentunit", {"": f"avg({UTILIZATION})"}, "stat", 4, 1),
        Panel("XIDs in a day", "none", {"": f"round(sum(increase({registry.XIDS.name}[1d])))"}, "stat", 4),
        told(
            "Out of service, and why",
            registry.DEVICE_FAULT,
            14,
            "Each device that is not handed out, with the reason that the log and kubelet's Events have.",
            *(("instance", 170), ("gpu", 60), ("GPU_I_ID", 90), ("state", 100), ("reason", 0), ("UUID", 120)),
        ),
        told(
            "Faults, also those that only warn",
            registry.GPU_FAULT,
            10,
            "Each fault of a GPU, and what the policy of this node makes of it.",
            *(("instance", 170), ("gpu", 60), ("fault", 0), ("policy", 100), ("UUID", 120)),
        ),
    ),
    "Pods": (
        Panel("Power of pods", "watt", {POD: POD_POWER}),
        Panel("How busy pods keep their GPUs", "percentunit", {POD: POD_UTILIZATION}, most=1),
        Panel("GPU memory of pods", "bytes", {POD: POD_MEMORY}),
    ),
    "Devices": (
        device("Utilization", "percent", Quantity.GPU_UTILIZATION, most=100, about="Not told in MIG mode."),
        device("Compute engine active", "percentunit", Quantity.GRAPHICS_ACTIVE, most=1, about="Hopper and newer."),
        device("Tensor cores active", "percentunit", Quantity.TENSOR_ACTIVE, most=1, about="Hopper and newer."),
        device("SM active", "percentunit", Quantity.SM_ACTIVE, most=1, about="Hopper and newer."),
        device("Memory bandwidth", "percentunit", Quantity.DRAM_ACTIVE, most=1, about="Hopper and newer."),
        device("Memory used", "mbytes", Quantity.MEMORY_USED),
        device("Power", "watt", Quantity.POWER),
        device("Temperature", "celsius", Quantity.GPU_TEMPERATURE),
        device("SM clock", "rotmhz", Quantity.SM_CLOCK),
        *(
            Panel(
                f"NVLink {text}",
                "Bps",
                {"{{instance}} GPU {{gpu}}": f'rate({series.name}{{gpu=~"$gpu"}}[$__rate_interval])'},
                width=6,
            )
            for text, series in zip(("sent", "received"), registry.NVLINK_SERIES, strict=True)
        ),
        device("PCIe sent", "Bps", Quantity.PCIE_TRANSMIT_RATE, width=6),
        device("PCIe received", "Bps", Quantity.PCIE_RECEIVE_RATE, width=6),
    ),
    "Health": (
        Panel(
            "XIDs",
            "none",
            {"{{instance}} GPU {{gpu}} XID {{xid}}": f"increase({registry.XIDS.name}[$__rate_interval])"},
        ),
        rate("Throttled by heat", "percentunit", Quantity.THROTTLED_BY_TEMPERATURE, factor=" / 1e9", most=1),
        rate("Throttled to limit power", "percentunit", Quantity.THROTTLED_BY_POWER, factor=" / 1e9", most=1),
        device("Uncorrected ECC errors", "none", Quantity.ECC_UNCORRECTED_VOLATILE),
        device("Rows remapped for uncorrected errors", "none", Quantity.REMAPPED_ROWS_UNCORRECTED),
        rate("NVLink replays", "cps", Quantity.NVLINK_REPLAYS),
        rate("NVLink recoveries", "cps", Quantity.NVLINK_RECOVERIES),
        rate("PCIe replays", "cps", Quantity.PCIE_REPLAYS),
        device("Memory temperature", "celsius", Quantity.MEMORY_TEMPERATURE),
    ),
    "Scheduling": (
        Panel(
            "Free GPUs by NUMA node",
            "none",
            {"{{instance}} node {{numa_node}}, {{handed_out_by}}": registry.FREE_GPUS.name},
        ),
        Panel(
            "Largest aligned request that fits",
            "none",
            {"{{instance}} {{handed_out_by}}": registry.LARGEST_ALIGNED.name},
        ),
        Panel(
            "Devices by resource",
            "none",
            {"{{resource}} {{state}}": f"sum by (resource, state) ({registry.RESOURCE_DEVICES.name})"},
        ),
        Panel("Allocations", "cps", {"{{resource}}": summed(registry.ALLOCATIONS, "resource")}),
        Panel(
            "Refused",
            "cps",
            {
                "{{resource}} {{reason}}": summed(registry.ALLOCATION_ERRORS, "resource", "reason"),
                "{{call}} {{reason}}": summed(registry.PREPARE_ERRORS, "call", "reason"),
            },
        ),
        Panel(
            "Admission, 99th percentile",
            "s",
            {
                "{{call}}": "histogram_quantile(0.99, sum by (le, call)"
                f" (rate({registry.ADMISSION.name}_bucket[$__rate_interval])))"
            },
        ),
    ),
    "The daemon": (
        Panel(
            "NVML calls, 99th percentile",
            "s",
            {
                "{{call}}": "histogram_quantile(0.99, sum by (le, call)"
                f" (rate({registry.NVML_CALLS.name}_bucket[$__rate_interval])))"
            },
        ),
        Panel(
            "NVML errors",
            "cps",
            {"{{instance}} {{call}} {{reason}}": f"rate({registry.NVML_ERRORS.name}[$__rate_interval])"},
        ),
        Panel("Collection", "s", {"{{instance}}": registry.COLLECTION.name}),
        Panel("Age of the numbers", "s", {"{{instance}}": f"time() - {registry.COLLECTED.name}"}),
        Panel(
            "CPU",
            "percentunit",
            {"{{instance}}": f"rate({registry.CPU.name}[$__rate_interval]){OURS}"},
        ),
        Panel("Memory", "bytes", {"{{instance}}": f"{registry.MEMORY.name}{OURS}"}),
    ),
}


def dashboard() -> dict[str, Any]:
    """Give the dashboard as Grafana imports it."""
    return {
        "title": "GPUs (gpuplugin)",
        "uid": "gpuplugin",
        "description": "GPUs, who has them and how they are, by gpuplugin's metrics; from monitoring/generate.py.",
        "tags": ["gpu", "kubernetes"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": _panels(),
    }


def _variables() -> list[dict[str, Any]]:
    hosts = named(Quantity.POWER)
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        *(
            {
                "name": name,
                "label": label,
                "type": "query",
                "datasource": DATA_SOURCE,
                "query": {"query": f"label_values({hosts}{chosen}, {name})", "refId": name},
                "refresh": 2,
                "includeAll": True,
                "multi": True,
                "allValue": ".*",
                "current": {"text": ["All"], "value": ["$__all"]},
                "sort": 7,
            }
            for name, label, chosen in (("Hostname", "Node", ""), ("gpu", "GPU", '{Hostname=~"$Hostname"}'))
        ),
    ]


def _panels() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    y = 0
    for title, panels in ROWS.items():
        made.append(
            {
                "id": len(made) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": _at(0, y, WIDTH, 1),
                "panels": [],
            }
        )
        x, y, height = 0, y + 1, 0
        for panel in panels:
            tall = 4 if panel.kind == "stat" else 8
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            made.append(_panel(len(made) + 1, panel, _at(x, y, panel.width, tall)))
            x, height = x + panel.width, max(height, tall)
        y += height
    return made


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(number: int, panel: Panel, at: dict[str, int]) -> dict[str, Any]:
    table = panel.kind == "table"
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    elif panel.kind == "timeseries" and panel.unit in ("none", "cps"):
        defaults["custom"] = {"axisSoftMax": 1}  # or nothing at all is drawn on an axis to 100
    made: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATA_SOURCE,
        "gridPos": at,
        "fieldConfig": {
            "defaults": defaults,
            "overrides": [_wide(name, width) for name, width in panel.columns if width],
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": DATA_SOURCE,
                "expr": query,
                "legendFormat": legend,
                **({"instant": True, "format": "table"} if table else {}),
            }
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
    }
    if panel.kind == "timeseries":
        made["options"] = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == "stat":
        made["options"] = {
            "reduceOptions": {"calcs": ["lastNotNull"]},
            "colorMode": "none",
            "graphMode": "area",
            "textMode": "auto",
            "justifyMode": "auto",
            "orientation": "auto",
            "wideLayout": True,
            "showPercentChange": False,
            "percentChangeColorMode": "standard",
        }
    if table:
        order = {name: place for place, (name, _) in enumerate(panel.columns)}
        hidden = dict.fromkeys(("Time", "Value"), True)
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden, "indexByName": order}}]
    return made


def _wide(column: str, pixels: int) -> dict[str, Any]:
    return {
        "matcher": {"id": "byName", "options": column},
        "properties": [{"id": "custom.width", "value": pixels}],
    }
