"""The parser of the second opinion, which must be right on machines without a GPU too."""

from __future__ import annotations

from tests.hardware.nvidia_smi import parse_topology

TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV12\tSYS\tPXB\t0-31\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tNODE\tSYS\t0-31\t0\t\tN/A\n"
    "GPU2\tSYS\tNODE\t X \tSYS\t32-63\t1\t\tN/A\n"
    "NIC0\tPXB\tSYS\tSYS\t X \t\t\t\t\n"
    "\n"
    "Legend:\n"
    "\n"
    "  X    = Self\n"
)


def test_the_matrix_between_gpus():
    assert parse_topology(TOPOLOGY) == {
        (0, 1): "NV12",
        (0, 2): "SYS",
        (1, 0): "NV12",
        (1, 2): "NODE",
        (2, 0): "SYS",
        (2, 1): "NODE",
    }


def test_one_gpu_alone():
    assert parse_topology("\tGPU0\tCPU Affinity\nGPU0\t X \t0-15\n") == {}
