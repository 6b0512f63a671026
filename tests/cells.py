"""Small measured cells, written as the contract's files, with numbers that a test chooses."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from sextant.experiment.scenarios import level_to_json
from sextant.experiment.servers import Variant
from sextant.experiment.sheets import CellKey
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.llm import load_llm
from sextant.pages.blocks import Document, Section, Table, as_text
from sextant.points.cell_files import TABLES
from sextant.points.cell_files import write_cell as write_cell_files
from sextant.points.run import (
    CellOrigin,
    CellRun,
    ClientReport,
    HostFacts,
    LevelRun,
    Quantiles,
    ServerFacts,
)
from sextant.points.summarize import aggregate_points
from sextant.points.verdict import FEASIBLE, Feasibility, Probe, ProbeOutcome, Tuning, Verdict
from sextant.studies.study import StudyData, read_study_data
from support import ROOT

SERVER = ServerFacts("vllm", "0.32.0", command=("vllm",))
TOO_LARGE = Verdict(ProbeOutcome.WEIGHTS_TOO_LARGE, {"weight_gib": 9.0, "usable_gib": 8.0})
KEY = {"source": "measured", "llm_id": "llm", "gpu_profile_id": "1xGPU"}
KEY |= {"workload_id": "w", "scenario_id": "s", "variant_id": "default"}
ORIGIN = CellOrigin(
    started_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    host=HostFacts(processor="a processor × 2"),
)


def request(level: float = 1.0, **values: Any) -> dict[str, Any]:
    """Return a request: due and sent at 0 s, tokens at 0.1 and 0.2 s, 10 in, 2 out."""
    row = {
        "level": level,
        "request_id": "r",
        "replica": 0,
        "user": 0,
        "status": "ok",
        "error": None,
    }
    row |= {"scheduled_s": 0.0, "sent_s": 0.0, "first_token_s": 0.1, "last_token_s": 0.2}
    row |= {"input_tokens": 10, "output_tokens": 2}
    row |= {"requested_input_tokens": 10, "requested_output_tokens": 2} | values
    if "token_offsets_ms" not in values and row["first_token_s"] is not None:
        times = (row["first_token_s"], row["last_token_s"])
        row["token_offsets_ms"] = [(time - row["sent_s"]) * 1e3 for time in times]
    return row


def failed_request(level: float = 1.0, **values: Any) -> dict[str, Any]:
    """Return a request that timed out without a token."""
    nothing = dict.fromkeys(("first_token_s", "last_token_s", "output_tokens"))
    values = {"status": "timeout", "error": "no answer", "token_offsets_ms": []} | values
    return request(level, **nothing, **values)


def write_cell(
    folder: Path,
    requests: Sequence[Mapping[str, Any]] = (),
    *,
    server: Sequence[Mapping[str, Any]] = (),
    telemetry: Sequence[Mapping[str, Any]] = (),
    durations_s: Mapping[float, float] | None = None,
    levels: Mapping[float, Mapping[str, Any]] | None = None,
    kind: str = "closed_loop",
    variant: Mapping[str, Any] | None = None,
    batch_weight_tokens: int | None = 1000,
    starts_s: Sequence[float] = (20.0,),
    verdict: Verdict = FEASIBLE,
    run: Mapping[str, Any] | None = None,
    **key: str,
) -> Path:
    """Write a cell's five files and return its folder; columns that a row does not name are null.

    A level with requests takes 10 s unless `durations_s` has it. The other arguments replace
    fields: `levels` those of each `LevelRun`, `run` those of the `CellRun`, `variant` those of the
    default variant, and `key` those of `KEY`. Of the server starts only the last one passed.
    """
    names, durations_s, levels = KEY | key, durations_s or {}, levels or {}
    batch_weight_tokens = batch_weight_tokens if verdict.is_feasible else None
    all_levels = sorted({row["level"] for row in requests} | {*durations_s} | {*levels})
    rows = {"requests": requests, "server": server, "telemetry": telemetry}
    tables = {
        name: pa.Table.from_pylist([dict(row) for row in rows[name]], schema=schema)
        for name, schema in TABLES.items()
    }
    lag = Quantiles(median=0.1, p99=0.5, max=2.0)
    shared = dict.fromkeys(("n_warmup_requests", "n_cooldown_requests", "n_prepared_late"), 0)
    shared |= {"started_s": 0.0, "client": ClientReport(lag, lag)}
    level_runs = [
        LevelRun(level=level, duration_s=durations_s.get(level, 10.0), **shared)
        for level in all_levels
    ]
    facts = {
        "source": names.pop("source"),
        "key": CellKey(**names),
        "scenario": {"kind": kind, "levels": [level_to_json(level) for level in all_levels]},
        "variant": Variant(**{"variant_id": names["variant_id"], **(variant or {})}),
        "verdict": verdict,
        "batch_weight_tokens": batch_weight_tokens,
        "server": SERVER if verdict.is_feasible else None,
        "levels": tuple(replace(own, **levels.get(own.level, {})) for own in level_runs),
        "origin": ORIGIN,
    }
    tuning = Tuning(
        verdict=verdict,
        batch_weight_tokens=batch_weight_tokens,
        memory=Feasibility(verdict, 0.9, 1.0, 2.0, 1000),
        probes=tuple(Probe(1000, "ok", "", each_s) for each_s in starts_s if batch_weight_tokens),
    )
    write_cell_files(folder, CellRun(**facts | dict(run or {})), tuning, tables)
    return folder


def gpu_profile(n_gpus: int = 1, kind: str = "gpu", memory_gib: float = 40) -> GPUProfile:
    """Return a profile of an imaginary device."""
    name = "GPU" if kind == "gpu" else "cpu-core"
    gpu = GPU(name, kind, "none", memory_gib, 1000, 100, 10, "a test")
    return GPUProfile(f"{n_gpus}x{name}", gpu, n_gpus, 1.0)


PROFILES = {
    profile.gpu_profile_id: profile
    for profile in (gpu_profile(1), gpu_profile(2), gpu_profile(1, "cpu"))
}


def study_data(
    folder: Path, cells: Sequence[Path], llms: Iterable[str] = (), seed: int = 1
) -> StudyData:
    """Aggregate cells as the pipeline does; read them, and LLMs' facts, for a study."""
    tables = {name: folder / f"{name}.parquet" for name in ("point", "feasibility", "telemetry")}
    aggregate_points(cells, *tables.values())
    facts = {name: load_llm(ROOT / "resources" / "llms" / f"{name}.json") for name in llms}
    return read_study_data(cells, tables, facts, PROFILES, seed)


def column(section: Section, label: str) -> list[str]:
    """Return a column of a section's table, as its page shows it."""
    (table,) = blocks_of(section, Table)
    index = list(table.header).index(label)
    return [row[index] for row in table.cells]


def blocks_of(section: Section, kind: type) -> list[Any]:
    """Return the blocks of a kind that a section has."""
    return [block for block in section.blocks if isinstance(block, kind)]


def text_of(section: Section) -> str:
    """Return a section as a terminal prints it."""
    return as_text(Document("", [section]))
