"""Dynamic Resource Allocation: the kubelet plugin and ResourceSlices (nothing is in here yet)."""
