"""Container runtimes: whether they inject CDI devices, and the edit to their configuration that makes them do so.

A GPU that is allocated and not injected is the fault that users report most, and its cause is in files that belong to
somebody else. So the runtime itself is asked first (`cri`); what its files should say is decided by pure functions
(`containerd`, `crio`, `docker`, `podman`) over texts, which keep every byte that is not ours; only `files` writes.
"""
