from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplugin.kube.client import Kube
from tests.kube.standin import StandInApi, kubeconfig


@pytest.fixture
def api() -> StandInApi:
    return StandInApi()


@pytest.fixture
async def kube(api: StandInApi, tmp_path: Path) -> AsyncIterator[Kube]:
    async with Kube(kubeconfig(tmp_path), transport=api, patience=1.0) as client:
        yield client
