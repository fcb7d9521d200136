"""What the node's labels say: pure, from what was observed and what is offered, so that the two cannot contradict.

Keys and values are those of NVIDIA's feature discovery under ``nvidia.com/``, since selectors in use name them; what
is ours alone is under ``gpuplugin.io/``. A value is always one that Kubernetes takes, whatever a GPU is called.
"""
