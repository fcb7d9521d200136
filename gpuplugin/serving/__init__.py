"""What device plugin and DRA both need of kubelet: sockets to serve on, values that streams follow, what pods have."""
