"""What the tests on a SLURM cluster share."""

from collections.abc import Iterator

import pytest

from slurm_project import Cluster, start_cluster, stop_cluster


def pytest_itemcollected(item: pytest.Item) -> None:
    """All are slow: a cluster is started and stopped for each file."""
    if "tests/slurm/" in item.nodeid:
        item.add_marker(pytest.mark.slurm)
        item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one node with two devices, for the tests of a file."""
    started = start_cluster(tmp_path_factory.mktemp("slurm") / "c")
    yield started
    stop_cluster(started)
