"""A node whose claims are prepared, and its API server."""

import pytest

from tests.dra.claims import ApiServer, Node


@pytest.fixture
def api():
    return ApiServer()


@pytest.fixture
def node(tmp_path, api):
    return Node(tmp_path / "claims", api)
