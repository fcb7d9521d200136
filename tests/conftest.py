"""What holds for every test."""

from __future__ import annotations

import grpc.aio
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def _grpc_for_the_whole_session() -> None:
    """Keep grpc.aio up between tests.

    It shuts itself down with the last of its objects, wherever the garbage collector finds that one, and then waits for
    calls of an event loop that is gone: for ever.
    """
    grpc.aio.init_grpc_aio()
