"""A copy of the project that a test may change and run."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path

import duckdb
import yaml

from support import FAKE_PYTHON, ROOT

COPIED = ("environment.yml", "workflow", "scripts", "config", "resources")


class Project:
    """A copy of the project in a folder of its own, so that tests may change it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        for name in COPIED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, folder / name)

    @classmethod
    def at(cls, folder: Path) -> "Project":
        """Return the project that is in a folder."""
        project = cls.__new__(cls)
        project.folder = folder
        return project

    def copy(self, folder: Path, copy_file: Callable = shutil.copy2) -> "Project":
        """Return a copy, results included; by default all files keep their dates."""
        shutil.copytree(self.folder, folder, copy_function=copy_file)
        project = copy(self)
        project.folder = folder
        return project

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Snakemake in the project's folder."""
        command = [sys.executable, "-m", "snakemake", "--nocolor", *arguments]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True)

    def set_config(self, **values: object) -> None:
        """Change the configuration; `engine__python` is the key `python` in `engine`."""
        path = self.folder / "config" / "config.yaml"  # which wins over demo.yaml
        config = yaml.safe_load(path.read_text())
        for name, value in values.items():
            part = config
            *parents, last = name.split("__")
            for parent in parents:
                part = part.setdefault(parent, {})
            part[last] = value
        path.write_text(yaml.safe_dump(config))

    def sextant(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command line in the project's folder."""
        command = [sys.executable, "-c", "from sextant.cli.app import main; main()", *arguments]
        env = os.environ | environment
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True)

    def query(self, sql: str) -> list[tuple]:
        """Return the rows of a query of the store."""
        store = self.folder / "results" / "sextant.duckdb"
        with duckdb.connect(str(store), read_only=True) as database:
            return database.execute(sql).fetchall()

    def measure_little(self, *llms: str, **config: object) -> None:
        """Configure these LLMs of the demo on the fake engine, with levels of half a second.

        The server holds at most 8 requests: corner cases of hundreds take seconds per cell.
        """
        self.set_config(engine__python=str(FAKE_PYTHON), engine__max_num_seqs=8, **config)
        rows = [(f"llm-{name}", f"resources/llms/demo-{name}.json", "") for name in llms]
        self.write_sheet("llms", "llm_id config model", *rows)
        header = "scenario_id kind levels warmup_s duration_s"
        self.write_sheet("scenarios", header, ("users-1-8", "closed_loop", "1,2", 0.1, 0.4))
        self.leave_out_traffic()

    def leave_out_traffic(self) -> None:
        """Leave out the SLO with a trace, whose simulation takes longer than all the others."""
        slos = self.sheet("demo/slos")
        lines = slos.read_text().splitlines(keepends=True)
        slos.write_text("".join(line for line in lines if "azure-2023-conv-sample" not in line))

    def fit_one_workload(self, input_tokens: int = 512, output_tokens: int = 64) -> None:
        """Leave out the demo's workload that no cell uses; the other has these caps."""
        header = "workload_id trace_id max_input_tokens max_output_tokens"
        row = ("conversation", "azure-2023-conv-sample", input_tokens, output_tokens)
        self.write_sheet("workloads", header, row)

    def sheet(self, name: str) -> Path:
        """Return the path of a sheet."""
        return self.folder / "config" / f"{name}.tsv"

    def write_sheet(self, name: str, header: str, *rows: Sequence[object]) -> None:
        """Write a sheet; `header` has the names of the columns with spaces between."""
        lines = [header.split(), *rows]
        text = "".join("\t".join(map(str, line)) + "\n" for line in lines)
        self.sheet(name).write_text(text)

    def planned(self, *arguments: str) -> Counter[str]:
        """Return the jobs that a run would execute, by rule, less the target `all`."""
        done = self.snakemake("--dry-run", *(arguments or ("--cores", "2")))
        assert done.returncode == 0, done.stderr
        rules = Counter(re.findall(r"^ *(?:local)?rule (\w+):$", done.stderr + done.stdout, re.M))
        del rules["all"]
        return rules
