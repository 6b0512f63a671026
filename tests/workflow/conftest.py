"""A small project on the fake engine, run once through the whole DAG."""

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from support import FAKE_PYTHON, ROOT

COPIED = ("Snakefile", "environment.yml", "workflow", "scripts", "config", "resources")


class Project:
    """A copy of the project in a folder of its own, so that tests may change it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, folder / name)

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "snakemake", "--nocolor", *arguments]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=600)

    def set_config(self, **values: object) -> None:
        path = self.folder / "config" / "config.yaml"
        config = yaml.safe_load(path.read_text())
        for name, value in values.items():
            part = config
            *parents, last = name.split("__")
            for parent in parents:
                part = part[parent]
            part[last] = value
        path.write_text(yaml.safe_dump(config))

    def sheet(self, name: str) -> Path:
        return self.folder / "config" / f"{name}.tsv"

    def write_sheet(self, name: str, header: str, *rows: Sequence[object]) -> None:
        lines = [header.split(), *rows]
        text = "".join("\t".join(map(str, line)) + "\n" for line in lines)
        self.sheet(name).write_text(text)

    def planned(self, *arguments: str) -> Counter[str]:
        """Return the jobs that a run would execute, by rule, less the target `all`."""
        done = self.snakemake("--dry-run", *(arguments or ("--cores", "2")))
        assert done.returncode == 0, done.stderr
        rules = Counter(re.findall(r"^(?:local)?rule (\w+):$", done.stderr + done.stdout, re.M))
        del rules["all"]
        return rules


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
