"""A socket that others may remove at any moment, also before we have seen it."""

from gpuplugin.serving import socket
from gpuplugin.serving.socket import ListeningSocket, identity


async def test_a_socket_that_was_removed_before_it_was_first_looked_at_is_lost_and_is_opened_anew(
    tmp_path, monkeypatch
):
    """Kubelet, as it starts, removes what it finds in its folder: a daemon that started with it never registered."""
    listening = ListeningSocket(tmp_path, "gpu", lambda _server: None)

    def removed(path):
        path.unlink()
        return identity(path)

    with monkeypatch.context() as starting:
        starting.setattr(socket, "identity", removed)
        await listening.open()
    assert list(tmp_path.iterdir()) == []
    assert listening.lost()
    await listening.open()
    assert not listening.lost()
    assert list(tmp_path.iterdir()) == [listening.path]
    await listening.close()
    assert list(tmp_path.iterdir()) == []
