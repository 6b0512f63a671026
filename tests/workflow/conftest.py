"""A small project on the fake engine, run once through the whole DAG."""

import pytest

from project import COPIED, Project
from support import FAKE_PYTHON


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose three LLMs on two profiles have been measured (fake engine)."""
    project = Project(tmp_path_factory.mktemp("project"))
    project.set_config(engine__python=str(FAKE_PYTHON))
    llms = [
        (f"llm-{name}", f"resources/llms/demo-{name}.json", "")
        for name in ("opt-6m", "llama-16m", "bigcode-21m", "neox-34m")
    ]
    project.write_sheet("llms", "llm_id config model", *llms)
    header = "scenario_id kind levels warmup_s duration_s"
    project.write_sheet("scenarios", header, ("users-1-8", "closed_loop", "1,2", 0.1, 0.4))
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
