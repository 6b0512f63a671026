"""A small project on the fake engine, run once through the whole DAG."""

import fcntl
import os
from pathlib import Path

import pytest

from project import COPIED, Project


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose four LLMs on two profiles have been measured (fake engine).

    The first worker that needs it runs it; the others take copies, of which nothing is stale.
    """
    folder = tmp_path_factory.mktemp("project")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return measured(folder)
    place = tmp_path_factory.getbasetemp().parent / "finished"
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            measured(folder / "run").folder.rename(place)
    return Project.at(place).copy(folder / "copy")


def measured(folder: Path) -> Project:
    project = Project(folder)
    project.measure_little("opt-6m", "llama-16m", "bigcode-21m", "neox-34m")
    done = project.snakemake("--cores", "2")
    assert done.returncode == 0, done.stderr
    return project


@pytest.fixture
def project(finished: Project):
    """The finished project; what a test changes is put back."""
    kept = {
        path: path.read_bytes()
        for name in COPIED
        for path in [finished.folder / name, *(finished.folder / name).rglob("*")]
        if path.is_file()
    }
    yield finished
    for path, content in kept.items():
        if path.read_bytes() != content:
            path.write_bytes(content)
