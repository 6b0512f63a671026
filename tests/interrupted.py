"""Runs of a project that are killed: their remains, and what two runs have in common."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pyarrow.parquet as pq

from project import Project

_MARK = "SEXTANT_TEST_RUN"
# Activity of a run -> a part of the command line of a process that does it.
_DOING = {
    "job": ".snakemake/scripts/",
    "job about to start": "--mode subprocess",
    "server": "vllm.entrypoints",
    "telemetry": "sextant.engine.gauges",
}
# Options whose values differ between two runs of the same cell.
_OWN_OPTIONS = ("--port", "--model")


class InterruptedRun:
    """A run of Snakemake whose main process a test kills; all of its processes carry a mark."""

    def __init__(self, project: Project, scratch: Path, *arguments: str) -> None:
        self.project, self.scratch = project, scratch
        self.environ = os.environ | {_MARK: str(project.folder), "SLURM_TMPDIR": str(scratch)}
        self.command = [sys.executable, "-m", "snakemake", "--nocolor", "--cores", "2"]
        self.command += arguments

    def start(self) -> subprocess.Popen:
        """Start Snakemake's main process."""
        (self.project.folder / "logs").mkdir(exist_ok=True)
        with (self.project.folder / "logs" / "main.log").open("wb") as output:
            return subprocess.Popen(
                [*self.command, "--rerun-incomplete"],
                cwd=self.project.folder,
                env=self.environ,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def unlock(self, as_the_user_does: bool = True) -> None:
        """Unlock the folder by `--unlock`, or remove what that removes, which takes no seconds."""
        if not as_the_user_does:
            # Killed before it had locked anything, there are none.
            shutil.rmtree(self.project.folder / ".snakemake" / "locks", ignore_errors=True)
            return
        command, folder = [*self.command, "--unlock"], self.project.folder
        done = subprocess.run(command, cwd=folder, env=self.environ, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()

    def finish(self) -> None:
        """Run to the end."""
        main = self.start()
        try:
            assert main.wait(900) == 0, self.logs()
        finally:
            if main.poll() is None:
                self.kill(main)

    def logs(self) -> str:
        """Return the ends of all jobs' logs."""
        paths = sorted((self.project.folder / "logs").rglob("*.log"))
        return "\n".join(f"{path}:\n{path.read_text()[-800:]}" for path in paths)

    def activity(self) -> str:
        """Return what the run is doing, by its processes, and how much is measured."""
        doing = set()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())
                doing |= {name for name, part in _DOING.items() if part in command}
        results = self.project.folder / "results"
        n_levels = len(list(results.rglob("level.json")))
        n_cells = len(list(results.rglob("run.json")))
        named = ", ".join(sorted(doing)) or "Snakemake alone"
        return f"{named}; {n_cells} cells and {n_levels} levels of the next are measured"

    def kill(self, main: subprocess.Popen) -> float:
        """Kill the main process; return the seconds until nothing of the run was left."""
        os.kill(main.pid, signal.SIGKILL)
        main.wait()
        killed_s = time.monotonic()
        while left := [*self.processes(), *self.scratch.iterdir()]:
            assert time.monotonic() < killed_s + 240, left
            time.sleep(0.1)
        return time.monotonic() - killed_s

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the run, whatever their parent is by now."""
        found = []
        for process in psutil.process_iter():
            try:
                is_ours = process.environ().get(_MARK) == str(self.project.folder)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def check_files(self) -> None:
        """Check that every file of the results is whole, also those of checkpoints."""
        results = self.project.folder / "results"
        for path in results.rglob("*"):
            assert ".partial" not in path.name and path.name != ".lock", path
            if path.suffix == ".parquet":
                pq.read_table(path)
            elif path.suffix == ".json":
                json.loads(path.read_text())


def scratch_place() -> tempfile.TemporaryDirectory:
    """Return a folder for scratch whose path is short enough for sockets."""
    return tempfile.TemporaryDirectory(prefix="sx-")


def essence(results: Path) -> dict[str, Any]:
    """Return what two runs of the same have in common, whatever the clocks say."""
    cells = {
        str(path.parent.relative_to(results)): _cell(path.parent)
        for path in sorted((results / "benchmarks").rglob("run.json"))
    }
    workloads = {
        str(path.relative_to(results)): path.read_bytes()
        for path in sorted((results / "workloads").rglob("requests.parquet"))
    }
    points = pd.read_parquet(results / "points" / "measured" / "point.parquet")
    keys = ["llm_id", "gpu_profile_id", "workload_id", "scenario_id", "variant_id", "level"]
    points = points.sort_values(keys)
    counted = points[points["scenario_id"].str.startswith("fixed")]
    return {
        "cells": cells,
        "workloads": workloads,
        "points": points[[*keys, "batch_weight_tokens"]].values.tolist(),
        "counted": counted[[*keys, "n_ok", "n_failed"]].values.tolist(),
    }


def _cell(folder: Path) -> dict[str, Any]:
    run, tuning = (json.loads((folder / f"{name}.json").read_text()) for name in ("run", "tuning"))
    requests = pd.read_parquet(folder / "requests.parquet")
    told = ["request_id", "requested_input_tokens", "requested_output_tokens"]
    told += ["input_tokens", "output_tokens", "status"]
    is_fixed = run["scenario"]["kind"] != "closed_loop"
    command = run["server"]["command"]
    own = {n for option in _OWN_OPTIONS for n in (command.index(option) + 1,)}
    return {
        "definition": (run["definition_sha256"], run["definition"]),
        "command": [part for n, part in enumerate(command) if n not in own],
        "verdict": (run["verdict"], run["batch_weight_tokens"]),
        "probes": [(p["batch_weight_tokens"], p["outcome"]) for p in tuning["probes"]],
        "levels": [level["level"] for level in run["levels"]],
        "left_out": run["left_out"],
        "statuses": {(row.level, row.status) for row in requests.itertuples()},
        "requests": requests.sort_values(["level", "request_id"])[["level", *told]].values.tolist()
        if is_fixed
        else None,
        "same_ids": requests[requests["request_id"].duplicated()].empty,
    }
