"""What both servers towards kubelet stand on, device plugin and DRA: sockets, and values that streams follow."""
