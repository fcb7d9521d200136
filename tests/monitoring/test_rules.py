"""Rules and alerts, run by Prometheus's own unit tests: each alert fires for what it is about, and not for its like."""

import sys
from pathlib import Path

import pytest
import yaml

from tests.metrics.promtool import promtool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "monitoring" / "gpuplugin-rules.yaml"
sys.path.append(str(RULES.parent))

from queries import ALERTS  # noqa: E402 - a script's neighbour, not a package's module

ON = 'instance="node-1",gpu="3",UUID="GPU-3"'
NODE = 'instance="node-1"'
POD_A, POD_B = ('namespace="team",pod="a",container="main"', 'namespace="team",pod="b",container="main"')


def dev(name, **more):
    return f"DCGM_FI_{name}{{{ON}{''.join(f',{key}={chr(34)}{value}{chr(34)}' for key, value in more.items())}}}"


def last_seen(xid):
    return {f'gpuplugin_xid_last_seen_timestamp_seconds{{{ON},xid="{xid}"}}': "_x60 3600x60"}


def steady(value):
    return f"{value}x300"


FIRES = {
    "GpuWithdrawn": {f"gpuplugin_device_healthy{{{ON}}}": steady(0)},
    "GpuNeedsRepair": {f'gpuplugin_gpu_fault_info{{{ON},fault="reset-wanted",policy="reset"}}': steady(1)},
    "GpuXidNeedsReset": last_seen(95),
    "GpuXidNeedsRestart": last_seen(79),
    "GpuXidToLookInto": last_seen(48),
    "GpuRowRemapFailed": {dev("DEV_ROW_REMAP_FAILURE"): steady(1)},
    "GpuRowRemapPending": {
        dev("DEV_ROW_REMAP_PENDING"): "1x30 _x300",
        dev("DEV_ROW_REMAP_PENDING", pod="a"): "_x29 1x300",
    },
    "GpuEccUncorrected": {dev("DEV_ECC_DBE_VOL_TOTAL"): "0x60 1x300"},
    "GpuThrottledByHeat": {dev("DEV_THERMAL_VIOLATION"): "0+12000000000x300"},
    "GpuThrottledByPower": {dev("DEV_POWER_VIOLATION"): "0+40000000000x300"},
    "GpuNvLinkErrors": {dev("DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"): "0x60 1x300"},
    "GpuPcieReplays": {dev("DEV_PCIE_REPLAY_COUNTER"): "0+30x300"},
    "GpuNotMeasured": {f'gpuplugin_gpus_measured{{{NODE},measured="no"}}': steady(1)},
    "GpuNvmlHangs": {f'gpuplugin_nvml_errors_total{{{NODE},call="probe",reason="nvml_hung"}}': "_x60 1x300"},
    "GpuHeldButIdle": {
        f"gpuplugin_allocation_info{{{ON},{POD_A}}}": steady(1),
        dev("PROF_GR_ENGINE_ACTIVE"): steady(0),
        dev("DEV_GPU_UTIL"): steady(0),
    },
    "GpusFragmented": {
        f'gpuplugin_free_gpus{{{NODE},handed_out_by="device_plugin",numa_node="0"}}': steady(2),
        f'gpuplugin_free_gpus{{{NODE},handed_out_by="device_plugin",numa_node="1"}}': steady(3),
        f'gpuplugin_largest_aligned_request_gpus{{{NODE},handed_out_by="device_plugin"}}': steady(3),
    },
    "GpuClaimsNotPrepared": {
        f'gpuplugin_prepare_errors_total{{{NODE},call="prepare",reason="device_held"}}': "1+1x300"
    },
    "GpuAllocationsRefused": {f'gpuplugin_allocation_errors_total{{{NODE},call="Allocate",reason="x"}}': "_x62 1x300"},
    "GpuAdmissionSlow": {
        f'gpuplugin_admission_seconds_bucket{{{NODE},call="Allocate",le="1.0"}}': steady(0),
        f'gpuplugin_admission_seconds_bucket{{{NODE},call="Allocate",le="5.0"}}': "0+1x300",
        f'gpuplugin_admission_seconds_bucket{{{NODE},call="Allocate",le="+Inf"}}': "0+1x300",
    },
    "GpuPodsUnknown": {f"gpuplugin_pod_resources_up{{{NODE}}}": steady(0)},
    "GpuMetricsStale": {f"gpuplugin_collected_timestamp_seconds{{{NODE}}}": steady(60)},
    "GpuPluginDown": {f'up{{{NODE},job="kube-system/gpuplugin"}}': steady(0)},
    "GpuPluginLarge": {
        f"process_resident_memory_bytes{{{NODE}}}": steady(300 << 20),
        f"gpuplugin_build_info{{{NODE}}}": steady(1),
    },
}
"""Series by which each alert fires: values a minute apart."""

STAYS = {
    "GpuWithdrawn": {f"gpuplugin_device_healthy{{{ON}}}": "1x60 0x3 1x300"},
    "GpuNeedsRepair": {f'gpuplugin_gpu_fault_info{{{ON},fault="thermal",policy="warn"}}': steady(1)},
    "GpuXidNeedsReset": {**last_seen(79), **last_seen(13), **last_seen(48)},
    "GpuXidNeedsRestart": {**last_seen(95), **last_seen(31)},
    "GpuXidToLookInto": {f'gpuplugin_xid_last_seen_timestamp_seconds{{{ON},xid="48"}}': steady(60)},
    "GpuRowRemapFailed": {dev("DEV_ROW_REMAP_FAILURE"): steady(0)},
    "GpuRowRemapPending": {dev("DEV_ROW_REMAP_PENDING"): "1x30 0x300"},
    "GpuEccUncorrected": {  # a pod comes: another series, with the old errors in it
        dev("DEV_ECC_DBE_VOL_TOTAL"): "7x60 _x300",
        dev("DEV_ECC_DBE_VOL_TOTAL", pod="a"): "_x60 7x300",
    },
    "GpuThrottledByHeat": {dev("DEV_THERMAL_VIOLATION"): "0+1000000000x300"},
    "GpuThrottledByPower": {dev("DEV_POWER_VIOLATION"): "0+20000000000x300"},
    "GpuNvLinkErrors": {dev("DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"): steady(5)},
    "GpuPcieReplays": {dev("DEV_PCIE_REPLAY_COUNTER"): "0+1x300"},
    "GpuNotMeasured": {f'gpuplugin_gpus_measured{{{NODE},measured="no"}}': steady(0)},
    "GpuNvmlHangs": {
        f'gpuplugin_nvml_errors_total{{{NODE},call="probe",reason="gpu_lost"}}': "_x60 1x300",
        f'gpuplugin_nvml_errors_total{{{NODE},call="gpu",reason="nvml_hung"}}': steady(4),
    },
    "GpuHeldButIdle": {
        f"gpuplugin_allocation_info{{{ON},{POD_A}}}": steady(1),
        dev("PROF_GR_ENGINE_ACTIVE"): steady(0.4),
        dev("DEV_GPU_UTIL"): steady(0),
    },
    "GpusFragmented": {
        f'gpuplugin_free_gpus{{{NODE},handed_out_by="device_plugin",numa_node="0"}}': steady(4),
        f'gpuplugin_free_gpus{{{NODE},handed_out_by="claims",numa_node="0"}}': steady(2),
        f'gpuplugin_largest_aligned_request_gpus{{{NODE},handed_out_by="device_plugin"}}': steady(4),
        f'gpuplugin_largest_aligned_request_gpus{{{NODE},handed_out_by="claims"}}': steady(2),
    },
    "GpuClaimsNotPrepared": {
        f'gpuplugin_prepare_errors_total{{{NODE},call="prepare",reason="device_held"}}': steady(9)
    },
    "GpuAllocationsRefused": {f'gpuplugin_allocation_errors_total{{{NODE},call="Allocate",reason="x"}}': steady(9)},
    "GpuAdmissionSlow": {
        f'gpuplugin_admission_seconds_bucket{{{NODE},call="Allocate",le="1.0"}}': "0+1x300",
        f'gpuplugin_admission_seconds_bucket{{{NODE},call="Allocate",le="+Inf"}}': "0+1x300",
    },
    "GpuPodsUnknown": {f"gpuplugin_pod_resources_up{{{NODE}}}": "1x60 0x5 1x300"},
    "GpuMetricsStale": {f"gpuplugin_collected_timestamp_seconds{{{NODE}}}": "0+60x300"},
    "GpuPluginDown": {f'up{{{NODE},job="other"}}': steady(0)},
    "GpuPluginLarge": {f'process_resident_memory_bytes{{{NODE},job="other"}}': steady(300 << 20)},
}
"""Series that are like those and by which it stays quiet."""

AT = {"GpuXidNeedsReset": "62m", "GpuXidNeedsRestart": "62m", "GpuXidToLookInto": "62m", "GpuAllocationsRefused": "65m"}
"""When an alert is looked for, where it is over by the usual time."""


def run(tmp_path, *tests):
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": list(tests)}))
    status, said = promtool("test", "rules", str(path))
    assert status == 0, said


def given(series):
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
    }


def firing(name, series, expected):
    where = AT.get(name, "70m" if expected else "100m")
    if name in {"GpuRowRemapPending", "GpuHeldButIdle", "GpuNvLinkErrors", "GpusFragmented"} and expected:
        where = "130m" if name == "GpuHeldButIdle" else "80m"
    query = f'count(ALERTS{{alertname="{name}", alertstate="firing"}})'
    samples = [{"labels": "{}", "value": 1}] if expected else []
    return {**given(series), "promql_expr_test": [{"expr": query, "eval_time": where, "exp_samples": samples}]}


def test_every_alert_has_both_its_examples():
    assert FIRES.keys() == STAYS.keys() == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("name", FIRES)
def test_it_fires(tmp_path, name):
    run(tmp_path, firing(name, FIRES[name], expected=True))


@pytest.mark.parametrize("name", STAYS)
def test_it_stays_quiet(tmp_path, name):
    run(tmp_path, *(firing(name, series, expected=False) for series in ({}, STAYS[name])))


def test_what_people_read_is_filled_in(tmp_path):
    alert = next(one for one in ALERTS if one.name == "GpuXidNeedsReset")
    labels = {"severity": "critical", "instance": "node-1", "gpu": "3", "UUID": "GPU-3", "xid": "95"}
    summary = "XID 95 on GPU 3 (GPU-3) of node-1"
    expected = {"exp_labels": labels, "exp_annotations": {"summary": summary, "runbook": alert.runbook}}
    rule = {"eval_time": "62m", "alertname": alert.name, "exp_alerts": [expected]}
    run(tmp_path, {**given(last_seen(95)), "alert_rule_test": [rule]})


def recorded(series, query, *samples):
    expected = [{"labels": labels, "value": value} for labels, value in samples]
    return {**given(series), "promql_expr_test": [{"expr": query, "eval_time": "5m", "exp_samples": expected}]}


def pod(name):
    return f'{{namespace="team", pod="{name}"}}'


def test_power_of_a_shared_gpu_is_divided_and_summed_over_a_pods_gpus(tmp_path):
    other = 'instance="node-1",gpu="4",UUID="GPU-4"'
    series = {
        f"gpuplugin_allocation_info{{{ON},{POD_A}}}": steady(1),
        f"gpuplugin_allocation_info{{{ON},{POD_B}}}": steady(1),
        f"gpuplugin_allocation_info{{{other},{POD_B}}}": steady(1),
        dev("DEV_POWER_USAGE"): steady(300),
        f"DCGM_FI_DEV_POWER_USAGE{{{other},{POD_B}}}": steady(500),
    }
    a, b = (f"gpuplugin:pod_power:watts{pod(name)}" for name in "ab")
    run(tmp_path, recorded(series, "gpuplugin:pod_power:watts", (a, 150), (b, 650)))


def test_utilization_is_of_the_mig_device_where_there_is_one_and_coarse_where_there_is_no_better(tmp_path):
    old = 'instance="node-2",gpu="0",UUID="GPU-A100"'
    mig = 'GPU_I_ID="2",GPU_I_PROFILE="1g.10gb"'
    series = {
        f"gpuplugin_allocation_info{{{ON},{mig},{POD_A}}}": steady(1),
        f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{ON},{mig},{POD_A}}}": steady(0.25),
        f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{ON},GPU_I_ID="3"}}': steady(0.75),
        f"gpuplugin_allocation_info{{{old},{POD_B}}}": steady(1),
        f"DCGM_FI_DEV_GPU_UTIL{{{old},{POD_B}}}": steady(40),
    }
    a, b = (f"gpuplugin:pod_utilization:ratio{pod(name)}" for name in "ab")
    run(tmp_path, recorded(series, "gpuplugin:pod_utilization:ratio", (a, 0.25), (b, 0.4)))


def test_two_daemons_during_an_update_count_once(tmp_path):
    newer = ON.replace("node-1", "node-1-new")
    series = {
        f"gpuplugin_allocation_info{{{ON},{POD_A}}}": steady(1),
        f"gpuplugin_allocation_info{{{newer},{POD_A}}}": steady(1),
        dev("DEV_POWER_USAGE"): steady(300),
        f"DCGM_FI_DEV_POWER_USAGE{{{newer}}}": steady(302),
        dev("DEV_FB_USED"): steady(10),
    }
    run(
        tmp_path,
        recorded(series, "gpuplugin:pod_power:watts", (f"gpuplugin:pod_power:watts{pod('a')}", 302)),
        recorded(series, "gpuplugin:pod_memory_used:bytes", (f"gpuplugin:pod_memory_used:bytes{pod('a')}", 10 << 20)),
    )
