"""The files of a cell, written from what its measurement came to."""

from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from sextant.base.files import provenance, write_json, write_parquet
from sextant.benchmark.batch_weight import Probe
from sextant.benchmark.checkpoint import Checkpoint
from sextant.benchmark.definition import Cell, CellOutputs
from sextant.benchmark.host import host_facts
from sextant.cells.integrity import file_facts, sealed
from sextant.experiment.memory import Feasibility
from sextant.experiment.scenarios import as_json
from sextant.load.level import REQUEST_SCHEMA
from sextant.telemetry.watcher import SERVER_SCHEMA, TELEMETRY_SCHEMA

_UNKNOWN_MEMORY = dict.fromkeys(field.name for field in fields(Feasibility))
TABLES = {"requests": REQUEST_SCHEMA, "server": SERVER_SCHEMA, "telemetry": TELEMETRY_SCHEMA}


@dataclass
class Record:
    """What is known of a cell beside its tables."""

    probes: list[Probe] = field(default_factory=list)
    levels: list[dict] = field(default_factory=list)
    """Entries of `run.json`, of the levels that the checkpoint holds."""
    left_out: list[dict] = field(default_factory=list)
    """`level` and `reason` of the levels that would have told nothing."""
    possible_gain: float | None = None
    """How much larger a batch weight that works may be, as a fraction of the one that was tuned."""
    server: dict | None = None
    unsent_parameters: list[str] = field(default_factory=list)
    prompts: str | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))


def write_results(
    cell: Cell,
    outputs: CellOutputs,
    record: Record,
    feasibility: Feasibility | None,
    kept: Checkpoint,
) -> None:
    """Write all files; `run.json`, which has the SHA-256 of the others, comes last.

    `feasibility` is None of servers that run already: only their host knows their memory.
    """
    is_served = record.server is not None
    reason = feasibility.reason if feasibility else "fits"
    if reason == "fits" and not is_served:
        reason = f"does not fit: no batch weight passed in {len(record.probes)} server starts"
    weight = record.server["batch_weight_tokens"] if record.server else None
    verdict = {"is_feasible": is_served, "reason": reason, "batch_weight_tokens": weight}
    origin = provenance({"workload": cell.workload_path}, seed=cell.seed)
    for name, schema in TABLES.items():
        write_parquet(getattr(outputs, name), kept.table(name, record.levels, schema), origin)
    probes = [probe.as_dict() for probe in record.probes]
    tuning = {
        **verdict,
        "possible_gain": record.possible_gain,
        "memory": asdict(feasibility) if feasibility else _UNKNOWN_MEMORY,
        "probes": probes,
    }
    write_json(outputs.tuning, tuning)
    files = file_facts([*(getattr(outputs, name) for name in TABLES), outputs.tuning])
    write_json(outputs.run, sealed(_run(cell, record, verdict, origin) | {"files": files}))


def _run(cell: Cell, record: Record, verdict: dict, origin: dict) -> dict[str, Any]:
    return {
        "source": cell.source,
        "llm_id": cell.llm_id,
        "gpu_profile_id": cell.gpu_profile_id,
        "workload_id": cell.workload_id,
        "scenario_id": cell.scenario_id,
        "variant_id": cell.variant.variant_id,
        "scenario": as_json(cell.scenario),
        "variant": asdict(cell.variant),
        **verdict,
        "server": record.server,
        "unsent_parameters": record.unsent_parameters,
        "sampler": cell.sampler,
        "prompts": record.prompts,
        "levels": record.levels,
        "left_out": record.left_out,
        "started_at": record.started_at.isoformat(timespec="seconds"),
        "host": host_facts(),
        "definition": dict(cell.definition),
        "definition_sha256": cell.definition_sha256,
        "provenance": origin,
    }
