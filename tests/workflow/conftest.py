"""A small project on the fake engine, run once through the whole DAG."""

import pytest

from project import COPIED, Project


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose four LLMs on two profiles have been measured (fake engine)."""
    project = Project(tmp_path_factory.mktemp("project"))
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
