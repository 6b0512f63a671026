"""An experiment where it runs: in a folder, with the configuration that it was loaded from."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from sextant.base.files import read_parquet
from sextant.experiment.experiment import Experiment
from sextant.experiment.loading import load_experiment
from sextant.experiment.sheets import DEFAULT_VARIANT, CellKey, Configuration
from sextant.points.cell_files import take_of
from sextant.points.frame import LENGTHS


@dataclass(frozen=True)
class Workspace:
    """An experiment in a folder."""

    experiment: Experiment
    config: Mapping[str, Any]
    folder: Path = Path()  #: Paths of the configuration start there.

    def reloaded(self) -> "Workspace":
        """Return it with the sheets as they are now: chosen cells may be new."""
        return Workspace(load_experiment(self.config), self.config, self.folder)

    @cached_property
    def settings(self) -> Configuration:
        """The configuration, typed; it was checked when the experiment was loaded."""
        return TypeAdapter(Configuration).validate_python(self.config)

    def is_of_decision(self, key: CellKey) -> bool:
        """Whether answers use the points of a cell."""
        decision = self.settings.decision
        return (
            key.workload_id == decision.workload_id
            and key.scenario_id == decision.scenario_id
            and key.variant_id == DEFAULT_VARIANT
        )

    @property
    def requests_target(self) -> str:
        """What to ask Snakemake for: the requests of the workload whose points answers use."""
        workload_id = self.settings.decision.workload_id
        return f"{self.settings.pathvars.results}/workloads/{workload_id}/requests.parquet"

    @property
    def points_target(self) -> str:
        """What to ask Snakemake for: the points of all measured cells."""
        return f"{self.settings.pathvars.results}/points/{self.settings.source}/point.parquet"

    def cell_folder(self, key: CellKey) -> Path:
        """Folder of a cell's results."""
        results = self.folder / self.settings.pathvars.results
        return results / "benchmarks" / self.settings.source / key.folder

    def job_times_file(self, key: CellKey) -> Path:
        """Snakemake's benchmark file of a cell's last job that ended."""
        times = self.folder / self.settings.pathvars.benchmarks
        take = take_of(self.cell_folder(key), is_current=True)
        return times / "benchmark_cell" / self.settings.source / f"{key.folder}{take}.tsv"

    def mean_lengths(self) -> list[float] | None:
        """Return the mean input and output tokens of the requests of the workload whose points
        answers use; None: it is not fitted yet."""
        path = self.folder / self.requests_target
        if not path.is_file():
            return None
        bins = read_parquet(path).to_pandas()
        return [float(np.average(bins[name], weights=bins["count"])) for name in LENGTHS]
