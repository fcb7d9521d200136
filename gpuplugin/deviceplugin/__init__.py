"""The kubelet Device Plugin v1beta1 server: answers from the newest snapshot, never from NVML."""
