"""The files of a cell, written from what its measurement came to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sextant.base.files import provenance
from sextant.bench.checkpoint import Checkpoint
from sextant.bench.definition import Cell
from sextant.engine.telemetry.host import host_facts
from sextant.experiment.scenarios import as_json
from sextant.points.cells.files import write_cell
from sextant.points.cells.memory import Feasibility
from sextant.points.cells.run import CELL_KEY, CellRun, LeftOut, LevelRun, ServerFacts
from sextant.points.cells.tables import TABLES
from sextant.points.cells.tuning import Probe, Tuning
from sextant.points.cells.verdict import FEASIBLE, Outcome, Verdict


@dataclass
class Record:
    """What is known of a cell beside its tables."""

    probes: Sequence[Probe] = ()
    levels: list[LevelRun] = field(default_factory=list)
    """Those that the checkpoint holds."""
    left_out: LeftOut | None = None
    """The levels that would have told nothing."""
    possible_gain: float | None = None
    """How much larger a batch weight that works may be, as a fraction of the one that was tuned."""
    server: ServerFacts | None = None
    unsent_parameters: list[str] = field(default_factory=list)
    prompts: str | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))


def write_results(
    cell: Cell, folder: Path, record: Record, feasibility: Feasibility | None, kept: Checkpoint
) -> None:
    """Write all files of a cell to its folder.

    `feasibility` is None of servers that run already: only their host knows their memory.
    """
    verdict = feasibility.verdict if feasibility else FEASIBLE
    if verdict.is_feasible and record.server is None:
        n_starts = {"n_server_starts": len(record.probes)}
        verdict = Verdict(Outcome.NO_BATCH_WEIGHT_PASSED, n_starts)
    tuning = Tuning(
        verdict=verdict,
        batch_weight_tokens=record.server.batch_weight_tokens if record.server else None,
        possible_gain=record.possible_gain,
        memory=feasibility,
        probes=tuple(record.probes),
    )
    tables = {name: kept.table(name, record.levels) for name in TABLES}
    write_cell(folder, _run(cell, record, tuning), tuning, tables)


def _run(cell: Cell, record: Record, tuning: Tuning) -> CellRun:
    return CellRun(
        **{name: getattr(cell, name) for name in CELL_KEY if name != "variant_id"},
        variant_id=cell.variant.variant_id,
        scenario=as_json(cell.scenario),
        variant=cell.variant,
        verdict=tuning.verdict,
        batch_weight_tokens=tuning.batch_weight_tokens,
        server=record.server,
        seed=cell.seed,
        sampler=cell.sampler,
        prompts=record.prompts,
        unsent_parameters=tuple(record.unsent_parameters),
        levels=tuple(record.levels),
        left_out=record.left_out,
        started_at=record.started_at.replace(microsecond=0),
        host=host_facts(),
        definition=cell.definition,
        definition_sha256=cell.definition_sha256,
        provenance=provenance({"workload": cell.workload_path}, seed=cell.seed),
    )
