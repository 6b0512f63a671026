"""What tests share: the mirror, a place of its own for each worker, and the order of units."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Before a library is loaded that reads it. Workers share the cores: threads of one that wait for
# each other in a spin would take them from the others.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Tests start hundreds of processes: without bytecode each would compile the library again, and
# each worker the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

from project import Project  # noqa: E402
from sextant.base.sheets import read_configuration  # noqa: E402
from support import ROOT  # noqa: E402

# A busy machine is no defect of the code. The same commit gives the same cases; to look for new
# ones: pytest --hypothesis-profile search.
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.register_profile("any machine", deadline=None, derandomize=True)
hypothesis.settings.load_profile("any machine")

COMPILE = """
import numpy as np
from sextant.simulate.server import Scheduler, StepLaw
from sextant.simulate.simulation import simulate, simulate_closed
from sextant.workload.requests import RequestStream
server = Scheduler(99, 9, 99, 9, 1, has_prefix_caching=False, is_asynchronous=False)
law = StepLaw(1, 1, 1, 1, 1)
requests = RequestStream.of(np.zeros(9), np.full(9, 2), np.full(9, 2))
simulate(requests, server, law)
simulate_closed(1, requests, server, law, duration_s=1e-3)
"""
"""What compiles the simulator, which takes a quarter of a minute."""


def pytest_configure(config: pytest.Config) -> None:
    """Give each worker a temporary folder of its own: servers' locks and scratch are node-wide.

    What the library keeps in the user's cache is kept for these tests alone, of all workers.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        cache = tempfile.TemporaryDirectory(prefix="sx-cache-", ignore_cleanup_errors=True)
        config.add_cleanup(cache.cleanup)
        os.environ["XDG_CACHE_HOME"] = cache.name
        if config.getoption("numprocesses", None):
            # Once, while the workers begin with whole DAGs, and not once in each of them.
            compiling = subprocess.Popen([sys.executable, "-c", COMPILE])
            config.add_cleanup(compiling.kill)
    if os.environ.get("PYTEST_XDIST_WORKER"):
        # Short, since sockets have their place in it.
        place = tempfile.TemporaryDirectory(prefix="sx-", ignore_cleanup_errors=True)
        config.add_cleanup(place.cleanup)
        os.environ["TMPDIR"] = tempfile.tempdir = place.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest.

    Beside the whole DAGs, which are few and long, the many short tests fill the workers.
    """
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    turns = ("tests/integration/", "tests/workflow/")
    return next((n for n, place in enumerate(turns) if item.nodeid.startswith(place)), len(turns))


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The folder of mirrored public data; tests that need it are skipped where it is absent."""
    folder = os.environ.get("SEXTANT_MIRROR")
    if not folder:
        pytest.skip("needs the mirror: SEXTANT_MIRROR is not set")
    return Path(folder)


@pytest.fixture(scope="module")
def without_a_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run a file's tests in an empty folder: questions find no results of a pipeline."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("empty"))
        yield


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A copy of the project, in which the test runs."""
    project = Project(tmp_path / "project")
    monkeypatch.chdir(project.folder)
    return project


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """The demo's configuration, with its sheets in a folder that a test may change."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / "resources").symlink_to(ROOT / "resources")
    monkeypatch.chdir(tmp_path)
    return read_configuration(tmp_path)
