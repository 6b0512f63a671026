"""What a run would do: jobs, requests to a scheduler, hours and cost."""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from sextant.plan.dry_run import DryRun
from sextant.plan.estimate import CellPlan, finished_cells, plan_cell
from sextant.plan.workspace import Workspace
from sextant.points.cell_files import RECEIPT


@dataclass(frozen=True)
class RunHours:
    """How long all cells take; waits in a queue are not included."""

    one_at_a_time: float
    on_nodes: float  #: With `n_nodes` of each GPU profile, the longest cells first.
    n_nodes: int


@dataclass(frozen=True)
class PlanAnswer:
    """What a run would do."""

    jobs: dict[str, int]  #: Number of jobs by rule.
    n_submissions: int
    cells: tuple[CellPlan, ...]
    gpu_hours: float  # Devices times hours; processor cores that serve count as devices.
    usd: float
    hours: RunHours

    @property
    def cells_by_profile(self) -> dict[str, list[CellPlan]]:
        """The cells by GPU profile, the profiles by name."""
        return cells_by_profile(self.cells)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON value: the fields."""
        return asdict(self)


def make_plan(workspace: Workspace, run: DryRun, n_nodes: int = 1) -> PlanAnswer:
    """Return what a run would do and take, with `n_nodes` servers of each profile."""
    finished = finished_cells(workspace)
    key_by_file = {
        f"benchmarks/{workspace.settings.source}/{key.folder}/{RECEIPT}": key
        for key in workspace.experiment.cells
    }
    cells = []
    for job in run.jobs:
        if job.rule == "benchmark_cell":
            file = Path(job.outputs[0])
            key = key_by_file["/".join(file.parts[-7:])]  # below the folder of results, wherever
            cells.append(plan_cell(workspace, key, finished, job.request))

    longest_s = max(
        (makespan_s(of_profile, n_nodes) for of_profile in cells_by_profile(cells).values()),
        default=0,
    )
    return PlanAnswer(
        jobs=dict(Counter(job.rule for job in run.jobs)),
        n_submissions=run.n_submissions,
        cells=tuple(cells),
        gpu_hours=sum(cell.n_devices * cell.seconds for cell in cells) / 3600,
        usd=sum(cell.usd for cell in cells),
        hours=RunHours(
            one_at_a_time=sum(cell.seconds for cell in cells) / 3600,
            on_nodes=longest_s / 3600,
            n_nodes=n_nodes,
        ),
    )


def makespan_s(cells: Iterable[CellPlan], n_nodes: int) -> float:
    """Return when the last cell ends, if each takes the node that is free first, longest first."""
    free_at_s = [0.0] * n_nodes
    for cell in sorted(cells, key=lambda cell: -cell.seconds):
        heapq.heapreplace(free_at_s, free_at_s[0] + cell.seconds)
    return max(free_at_s)


def cells_by_profile(cells: Iterable[CellPlan]) -> dict[str, list[CellPlan]]:
    """Return cells by GPU profile, the profiles by name."""

    def profile_of(cell: CellPlan) -> str:
        return cell.key.gpu_profile_id

    ordered = sorted(cells, key=profile_of)
    return {name: [*of_profile] for name, of_profile in groupby(ordered, key=profile_of)}
