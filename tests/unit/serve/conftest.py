"""One server for the tests of a module that need no other options."""

from collections.abc import Iterator

import pytest

from served import Served, serving


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), "--workers", "1") as server:
        server.get("/v1/llms")  # answered by a worker that is ready
        yield server
