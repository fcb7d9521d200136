"""Simulated machines: a double behind pynvml itself and a host root in the shape of the kernel's, so that all of the daemon runs without a GPU."""
