"""One daemon a node that makes NVIDIA GPUs schedulable, aligned and injected on Kubernetes."""

__version__ = "0.1.0"
