"""What the tests on a SLURM cluster share."""

from collections.abc import Iterator

import pytest

from slurm_project import Cluster, start_cluster, stop_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one node with two devices, for the tests of a file."""
    started = start_cluster(tmp_path_factory.mktemp("slurm") / "c")
    yield started
    stop_cluster(started)
