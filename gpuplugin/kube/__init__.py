"""The only package that talks to the Kubernetes API server.

`objects` and `kinds` are plain data and cost nothing to import; `client` and `watch` bring lightkube with them (a
quarter of a second, 10 MiB), so the daemon imports them once kubelet is served.
"""
