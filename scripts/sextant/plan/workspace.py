"""An experiment where it runs: in a folder, with the configuration that it was loaded from."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from sextant.experiment.experiment import Experiment
from sextant.experiment.loading import load_experiment
from sextant.experiment.sheets import DEFAULT_VARIANT, CellKey


class DecisionLoad(NamedTuple):
    """The workload and the scenario whose points answers use."""

    workload_id: str
    scenario_id: str


@dataclass(frozen=True)
class Workspace:
    """An experiment in a folder."""

    experiment: Experiment
    config: Mapping[str, Any]
    folder: Path = Path()  #: Paths of the configuration start there.

    def reloaded(self) -> "Workspace":
        """Return it with the sheets as they are now: chosen cells may be new."""
        return Workspace(load_experiment(self.config), self.config, self.folder)

    @property
    def source(self) -> str:
        """Name of the characterization that is measured."""
        return str(self.config["source"])

    @property
    def seed(self) -> int:
        """Seed of all random numbers."""
        return int(self.config["seed"])

    @property
    def memory_utilization(self) -> float:
        """Share of a device's memory that the engine may use."""
        return float(self.config["engine"]["memory_utilization"])

    @property
    def max_server_starts(self) -> int:
        """The most server starts that a search for a cell's batch weight may take."""
        return int(self.config["engine"]["max_server_starts"])

    @cached_property
    def decision(self) -> DecisionLoad:
        """What answers use."""
        decision = self.config["decision"]
        return DecisionLoad(decision["workload_id"], decision["scenario_id"])

    def is_of_decision(self, key: CellKey) -> bool:
        """Whether answers use the points of a cell."""
        return (key.workload_id, key.scenario_id, key.variant_id) == (
            *self.decision,
            DEFAULT_VARIANT,
        )

    @property
    def results(self) -> Path:
        """Folder of the results."""
        return self.folder / str(self.config["pathvars"]["results"])

    @property
    def requests_target(self) -> str:
        """What to ask Snakemake for: the requests of the workload whose points answers use."""
        results = self.config["pathvars"]["results"]
        return f"{results}/workloads/{self.decision.workload_id}/requests.parquet"

    @property
    def points_target(self) -> str:
        """What to ask Snakemake for: the points of all measured cells."""
        return f"{self.config['pathvars']['results']}/points/{self.source}/point.parquet"

    def cell_folder(self, key: CellKey) -> Path:
        """Folder of a cell's results."""
        return self.results / "benchmarks" / self.source / key.folder

    def job_times_file(self, key: CellKey) -> Path:
        """Snakemake's benchmark file of a cell's job."""
        times = self.folder / str(self.config["pathvars"]["benchmarks"])
        return times / "benchmark_cell" / self.source / f"{key.folder}.tsv"
