"""Snakemake on the tests' SLURM cluster, watched and disturbed from outside."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

import pandas as pd
import yaml

import support
from project import Project
from slurm_project import Cluster
from support import FAKE_PYTHON

PROFILE = "workflow/profiles/slurm"
PATIENCE_S = 300
# Lengths, scenario and batch weights keep a cell on the fake engine at half a minute.
LLMS = ("opt-6m", "llama-16m", "bigcode-21m", "neox-34m")
wait_for = partial(support.wait_for, timeout_s=PATIENCE_S, period_s=0.1)


def history(cluster: Cluster, job: str) -> list[str]:
    """Return what became of each run of a job; the last is the current one."""
    options = ["-X", "--duplicates", "--noheader", "-P", f"-j{job}", "--format=State"]
    return [line.split()[0] for line in cluster.output("sacct", *options).splitlines()]


def has_accounting(cluster: Cluster) -> bool:
    """Return whether slurmdbd answers."""
    command = ["sacctmgr", "--noheader", "show", "cluster"]
    done = subprocess.run(command, env=cluster.environ, capture_output=True, timeout=60)
    return done.returncode == 0


def kill_daemon(cluster: Cluster, name: str) -> None:
    os.kill(int((cluster.folder / f"{name}.pid").read_text()), signal.SIGKILL)


def start_daemon(cluster: Cluster, name: str, *command: str) -> None:
    """Start one of the cluster's daemons again, as the cluster's script does."""
    with (cluster.folder / f"{name}.out").open("ab") as output:
        process = subprocess.Popen(
            command,
            # slurmdbd's way to its database.
            env=cluster.environ | {"MYSQL_UNIX_PORT": f"{cluster.folder}/mysql.sock"},
            cwd=cluster.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    (cluster.folder / f"{name}.pid").write_text(str(process.pid))


def faults_project(folder: Path) -> Project:
    """Return a project of four LLMs on one H100 each, its workload fitted, nothing measured."""
    folder.mkdir(parents=True)
    project = Project(folder)
    project.set_config(engine__python=str(FAKE_PYTHON), engine__max_num_seqs=16)
    rows = [(llm, f"resources/llms/demo-{llm}.json", "") for llm in LLMS]
    project.write_sheet("llms", "llm_id config model", *rows)
    header = "gpu_profile_id gpu_id n_gpus usd_per_hour gpu_model"
    project.write_sheet("gpu_profiles", header, ("1xH100", "H100-80GB", 1, 4.0, "h100"))
    # Short answers: eight cells at once are to leave two cores some time.
    header = "workload_id trace_id n_bins max_input_tokens max_output_tokens"
    project.write_sheet(
        "workloads", header, ("conversation", "azure-2023-conv-sample", 64, 1024, 16)
    )
    header = "scenario_id kind levels warmup_s duration_s"
    scenarios = [("rates", "open_loop", "2,4,6", 0.5, 5), ("slow", "open_loop", "1,2,3,4", 0.5, 21)]
    # What recommendations rest on has to be there; nobody runs it here.
    scenarios.append(("users-1-8", "closed_loop", "1,2", 0.1, 0.4))
    project.write_sheet("scenarios", header, *scenarios)
    header = "llm_ids gpu_profile_ids workload_id scenario_id"
    cells = [("*", "*", "conversation", name) for name, *_ in scenarios]
    project.write_sheet("benchmarks", header, *cells)
    profile = project.folder / PROFILE / "config.yaml"
    values = yaml.safe_load(profile.read_text())
    given = {"slurm_account": "sextant", "slurm_partition": "gpu"}
    values["default-resources"] = [
        f"{name}={given.get(name, value)}"
        for name, _, value in (each.partition("=") for each in values["default-resources"])
    ]
    profile.write_text(yaml.safe_dump(values))
    done = project.snakemake("--cores", "2", "results/workloads/conversation/requests.parquet")
    assert done.returncode == 0, done.stderr
    return project


class Run:
    """Snakemake on a copy of a project, through SLURM; measures the cells of some LLMs."""

    all: ClassVar[list["Run"]] = []

    def __init__(
        self,
        cluster: Cluster,
        template: Project,
        folder: Path,
        cells: Mapping[str, str],
        *arguments: str,
    ) -> None:
        """Copy the template, unless it is there already, and start Snakemake.

        `cells` has the scenario of each LLM to measure; the first of the arguments are resources.
        """
        self.cluster, self.folder, self.cells = cluster, folder, cells
        self.arguments, self.kept, self.log = arguments, {}, folder / "snakemake.log"
        self._environment = cluster.environ | {"TMPDIR": f"{folder}/tmp"}
        Run.all.append(self)
        if not folder.exists():
            shutil.copytree(template.folder, folder)
        (folder / "tmp").mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        """Start Snakemake: the same command each time."""
        targets = [f"{self.place(llm)}/measured.json" for llm in self.cells]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._command(), "--", *targets],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def unlock(self) -> None:
        """Release the lock of a Snakemake that was killed."""
        command = [*self._command(), "--unlock"]
        subprocess.run(command, cwd=self.folder, env=self._environment, check=True)

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "snakemake", "--nocolor", "--workflow-profile", PROFILE]
        # What clusters have, gigabytes a cell and a look at jobs each minute, is not for tests.
        command += ["--latency-wait", "10", "--seconds-between-status-checks", "1"]
        command += ["--slurm-init-seconds-before-status-checks", "1"]
        command += ["--max-status-checks-per-second", "1"]
        return [*command, "--set-resources", "benchmark_cell:mem_mb=attempt*1000", *self.arguments]

    def kill(self) -> None:
        """End Snakemake with SIGKILL, which leaves its jobs to themselves."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def cell(self, llm: str) -> Path:
        return self.folder / self.place(llm)

    def place(self, llm: str) -> str:
        """Return the folder of an LLM's results, from the project's folder."""
        return f"results/benchmarks/measured/{llm}/1xH100/conversation/{self.cells[llm]}"

    def jobs(self, llm: str) -> list[str]:
        """Return the ids of the SLURM jobs that were submitted for an LLM's cell."""
        text = self.log.read_text()
        return re.findall(rf"submitted with SLURM jobid (\d+) \(log: \S+measured_{llm}_", text)

    def job(self, llm: str, n: int = 1) -> str:
        """Return the id of the n-th SLURM job of an LLM's cell, once it is submitted."""
        return wait_for(lambda: self.jobs(llm)[n - 1 :], f"job {n} of {llm}")[0]

    def states(self, llm: str) -> list[str]:
        """Return what became of each run of each job of an LLM's cell."""
        return [state for job in self.jobs(llm) for state in history(self.cluster, job)]

    def memory(self, job: str) -> str:
        options = ["-X", "--noheader", "-P", f"-j{job}", "--format=ReqMem"]
        return self.cluster.output("sacct", *options).strip()

    def slurm_log(self, job: str) -> str:
        """Return what SLURM and Snakemake have said in a job that failed."""
        (path,) = (self.folder / "logs" / "slurm").rglob(f"{job}.log")
        return path.read_text()

    def keep_level(self, llm: str) -> None:
        """Wait until the checkpoint has the first level, and note it."""
        place = self.cell(llm) / "partial"
        path, *_ = wait_for(lambda: sorted(place.glob("level-*/level.json")), f"a level of {llm}")
        self.kept[llm] = json.loads(path.read_text())["level"]

    def end(self, timeout_s: float = PATIENCE_S) -> str:
        """Wait for Snakemake's end, which must be a good one; return what it has said."""
        status = self.process.wait(timeout_s)
        text = self.log.read_text()
        assert status == 0, text[-5000:]
        return text

    def levels(self, llm: str) -> dict[str, dict]:
        """Return the levels of the finished cell by their names."""
        run = json.loads((self.cell(llm) / "run.json").read_text())
        return {str(level["level"]): level for level in run["levels"]}

    def processes(self) -> dict[int, str]:
        """Return the command lines of all processes that belong to this project's jobs."""
        mark, found = f"SLURM_SUBMIT_DIR={self.folder}\0".encode(), {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (place / "environ").read_bytes() + b"\0":
                    command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(place.name)] = command
            except OSError:
                continue
        return {pid: command for pid, command in found.items() if command}

    def process_of(self, llm: str, program: str) -> int:
        """Return the process of an LLM's last job that runs a script of this name."""
        job = f"SLURM_JOB_ID={self.jobs(llm)[-1]}\0".encode()
        for pid, command in self.processes().items():
            if _runs(command, program) and job in Path(f"/proc/{pid}/environ").read_bytes():
                return pid
        raise AssertionError(f"no {program} in {self.processes()}")

    def servers(self) -> list[tuple[str, dict[str, str]]]:
        """Return command line and environment of each server that runs."""
        found = []
        for pid, command in self.processes().items():
            if _runs(command, "fake_engine/python"):
                with contextlib.suppress(OSError):
                    lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
                    found.append((command, dict(line.partition("=")[::2] for line in lines)))
        return found

    def job_log(self, llm: str) -> str:
        """Return what the jobs of an LLM's cell have logged."""
        place = self.place(llm).replace("results/benchmarks/", "logs/benchmark_cell/")
        return (self.folder / f"{place}.log").read_text()


def _runs(command: str, script: str) -> bool:
    return any(word.endswith(script) for word in command.split()[1:2])


def results(cell: Path) -> tuple[dict, pd.DataFrame]:
    """Return what of a cell's results no clock has a part in."""
    run = json.loads((cell / "run.json").read_text())
    tuning = json.loads((cell / "tuning.json").read_text())
    facts = {name: run[name] for name in ("definition_sha256", "batch_weight_tokens", "left_out")}
    facts["levels"] = [level["level"] for level in run["levels"]]
    facts["probes"] = [(p["batch_weight_tokens"], p["outcome"]) for p in tuning["probes"]]
    requests = pd.read_parquet(cell / "requests.parquet")
    first_s = requests.groupby("level")["scheduled_s"].transform("min")
    requests["scheduled_s"] = (requests["scheduled_s"] - first_s).round(4)
    columns = ["level", "request_id", "user", "scheduled_s", "input_tokens", "output_tokens"]
    return facts, requests[[*columns, "status", "error"]]


def left_behind(run: Run) -> list[str]:
    """Return what a run that has finished should not have left: processes and files.

    Locks of devices stay: a file that is removed while another run waits for it locks nothing.
    """
    names = [
        str(path)
        for place in (run.folder / "results", run.folder / "tmp")
        for path in place.rglob("*")
        if (".partial" in path.name or path.name == ".lock" or path.name.startswith("sextant-"))
        and not path.name.startswith("sextant-devices-")
    ]
    return [*run.processes().values(), *names]
