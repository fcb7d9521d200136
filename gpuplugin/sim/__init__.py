"""Simulated machines: a double behind pynvml itself and a host root in the kernel's shape, so no GPU is needed."""
