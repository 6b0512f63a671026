"""Small measured cells by the contract's files, with numbers that a test chooses."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from sextant.base.files import write_json, write_parquet
from sextant.hardware.gpu import GPU, GPUProfile
from sextant.llm import load_llm
from sextant.pages.sections import Section
from sextant.store.build import aggregate_points
from sextant.studies.study_data import StudyData, read_study_data
from support import ROOT

_FLOAT, _TEXT, _INT = pa.float64(), pa.string(), pa.int32()
REQUESTS = pa.schema(
    [
        ("level", _FLOAT),
        ("request_id", _TEXT),
        ("replica", _INT),
        ("user", _INT),
        *((name, _FLOAT) for name in ("scheduled_s", "sent_s", "first_token_s", "last_token_s")),
        ("token_offsets_ms", pa.list_(pa.float32())),
        *((name, _INT) for name in ("input_tokens", "output_tokens")),
        *((name, _INT) for name in ("requested_input_tokens", "requested_output_tokens")),
        ("status", _TEXT),
        ("error", _TEXT),
    ]
)
SERVER = pa.schema(
    [
        ("level", _FLOAT),
        ("replica", _INT),
        *((n, _FLOAT) for n in ("time_s", "n_running", "n_waiting", "kv_cache_usage")),
        ("n_preemptions", _FLOAT),
    ]
)
_DEVICE = ("power_w", "energy_j", "utilization", "memory_utilization", "memory_used_gib")
_CLOCKS = ("sm_clock_mhz", "temperature_c")
TELEMETRY = pa.schema(
    [
        ("level", _FLOAT),
        ("time_s", _FLOAT),
        ("device", _TEXT),
        *((name, _FLOAT) for name in (*_DEVICE, *_CLOCKS)),
        ("throttle_reasons", _TEXT),
        ("sm_active", _FLOAT),
        ("sm_occupancy", _FLOAT),
    ]
)
KEY = {
    "source": "measured",
    "llm_id": "llm",
    "gpu_profile_id": "1xGPU",
    "workload_id": "w",
    "scenario_id": "s",
    "variant_id": "default",
}


def request(level: float = 1.0, **values: Any) -> dict[str, Any]:
    """Return a request: due and sent at 0 s, tokens at 0.1 and 0.2 s, 10 in, 2 out."""
    row = {
        "level": level,
        "request_id": "r",
        "replica": 0,
        "user": 0,
        "scheduled_s": 0.0,
        "sent_s": 0.0,
        "first_token_s": 0.1,
        "last_token_s": 0.2,
        "input_tokens": 10,
        "output_tokens": 2,
        "requested_input_tokens": 10,
        "requested_output_tokens": 2,
        "status": "ok",
        "error": None,
    } | values
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
    reason: str = "fits",
    **key: str,
) -> Path:
    """Write a cell's five files and return its folder.

    Args:
        folder: the cell's.
        requests: rows of `requests.parquet`, see `request`.
        server: rows of `server.parquet`.
        telemetry: rows of `telemetry.parquet`; what a row does not name is null.
        durations_s: duration by level; 10 s for a level that has requests and none here.
        levels: further fields of a level in `run.json`, e.g. a burst's `phase`.
        kind: of the scenario.
        variant: fields of the server variant that differ from the default's.
        batch_weight_tokens: what was tuned; None with a `reason` other than `fits`.
        reason: why the cell is infeasible, or `fits`.
        key: values of `KEY` that differ.
    """
    names, durations_s, levels = KEY | key, durations_s or {}, levels or {}
    is_feasible = reason == "fits"
    batch_weight_tokens = batch_weight_tokens if is_feasible else None
    all_levels = sorted({row["level"] for row in requests} | {*durations_s} | {*levels})
    for name, rows, schema in (
        ("requests", requests, REQUESTS),
        ("server", server, SERVER),
        ("telemetry", telemetry, TELEMETRY),
    ):
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
        write_parquet(folder / f"{name}.parquet", table, {})
    lag = {"median": 0.1, "p99": 0.5, "max": 2.0}
    verdict = {"is_feasible": is_feasible, "reason": reason}
    run = {
        **names,
        "scenario": {"kind": kind, "levels": [_level(level) for level in all_levels]},
        "variant": {"variant_id": names["variant_id"], "replicas": 1, **(variant or {})},
        **verdict,
        "batch_weight_tokens": batch_weight_tokens,
        "server": {"command": ["vllm"], "version": "0.32.0"} if is_feasible else None,
        "levels": [
            {
                "level": _level(level),
                "started_s": 0.0,
                "duration_s": durations_s.get(level, 10.0),
                "n_warmup_requests": 0,
                "n_cooldown_requests": 0,
                "n_prepared_late": 0,
                "client_lag_ms": lag,
                "send_lag_ms": lag,
                "server_mean_itl_ms": None,
            }
            | dict(levels.get(level, {}))
            for level in all_levels
        ],
        "started_at": "2026-01-02T03:04:05+00:00",
        "host": {"processor": "a processor × 2", "gpu_driver": None},
    }
    tuning = {
        **verdict,
        "memory": {"memory_utilization": 0.9, "weight_gib": 1.0, "kv_gib": 2.0},
        "batch_weight_tokens": batch_weight_tokens,
        "probes": [{}] if is_feasible else [],
    }
    write_json(folder / "run.json", run)
    write_json(folder / "tuning.json", tuning)
    return folder


def _level(level: float) -> float | str:
    return "inf" if level == float("inf") else level


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
    """Aggregate cells as the pipeline does, and read them for a study on `PROFILES`.

    Args:
        folder: for the tables.
        cells: from `write_cell`.
        llms: names of files in `resources/llms` whose facts the study has.
        seed: of what the analysis draws.
    """
    tables = {name: folder / f"{name}.parquet" for name in ("point", "feasibility", "telemetry")}
    aggregate_points(cells, *tables.values())
    facts = {name: load_llm(ROOT / "resources" / "llms" / f"{name}.json") for name in llms}
    return read_study_data(cells, tables, facts, PROFILES, seed)


def column(section: Section, label: str) -> list[str]:
    """Return a column of a section's table, as its page shows it."""
    (table,) = section.tables
    place = list(table.header).index(label)
    return [row[place] for row in table.rows]


def frame(rows: Sequence[Mapping[str, Any]], **shared: Any) -> pd.DataFrame:
    """Return rows of a table of the store, each with the key of a cell."""
    return pd.DataFrame([{**KEY, **shared, **row} for row in rows])
