"""What a run would do: jobs, requests to a scheduler, hours and cost."""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from sextant.experiment.current import compare_cells, stale_cells
from sextant.plan.dry_run import DryRun
from sextant.plan.estimate import CellPlan, finished_cells, plan_cell
from sextant.plan.workspace import Workspace


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
    changes: tuple[str, ...]  #: Why cells that were measured are measured again, one line a reason.
    warnings: tuple[str, ...]
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
    key_by_folder = {
        f"benchmarks/{workspace.settings.source}/{key.folder}": key
        for key in workspace.experiment.cells
    }
    compared = compare_cells(workspace.experiment, workspace.config, workspace.folder)
    cells = []
    for job in run.jobs:
        if job.rule == "benchmark_cell":
            folder = Path(job.outputs[0]).parent
            key = key_by_folder["/".join(folder.parts[-6:])]  # below the results, wherever
            cells.append(plan_cell(workspace, key, finished, job.request, compared[key]))

    longest_s = max(
        (makespan_s(of_profile, n_nodes) for of_profile in cells_by_profile(cells).values()),
        default=0,
    )
    return PlanAnswer(
        jobs=dict(Counter(job.rule for job in run.jobs)),
        n_submissions=run.n_submissions,
        cells=tuple(cells),
        warnings=run.warnings,
        changes=tuple(stale_cells(compared[cell.key] for cell in cells)),
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
