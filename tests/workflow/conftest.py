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
    """The finished project; what a test changes is put back, ages of files included."""
    kept = {path: (path.stat(), path.read_bytes()) for path in inputs(finished)}
    yield finished
    for path in inputs(finished):
        if path not in kept:
            path.unlink()
    for path, (stat, content) in kept.items():
        if not path.exists() or path.stat().st_mtime_ns != stat.st_mtime_ns:
            path.write_bytes(content)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def inputs(project: Project) -> list[Path]:
    found = [path for name in COPIED for path in (project.folder / name).rglob("*")]
    found += [project.folder / name for name in COPIED]
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]
