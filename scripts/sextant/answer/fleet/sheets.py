"""The two sheets of a fleet: demands and supply.

A trace counts by the mean rate of its hours: bursts within them are not known here.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from sextant.answer.fleet.problem import Demand, Pool
from sextant.answer.requests import Length, Requests, requests_of
from sextant.base.errors import InputError
from sextant.base.ids import file_name
from sextant.base.sheets import SCHEMAS, Row, load_sheet
from sextant.facts.gpu import GPU, GPUS, load_gpu
from sextant.facts.llm.config_files import name_of
from sextant.facts.mig import mig_slice
from sextant.facts.slo import SLO
from sextant.points.characterizations.points import LENGTHS
from sextant.workload.profiles import HOUR_S, traffic_series

HOURS = 24
MINUTE_S = 60.0
_OPTIONAL = ("priority", "least_replicas", "model")
_OWN = ("demand_id", "team", "llm_id", "hf_config", *_OPTIONAL, *LENGTHS)
_MEANS = (
    "hours of a trace have their mean rate; `sextant capacity` simulates bursts within them.",
)
_STEADY = (
    "the rate is taken as a steady load; requests that arrive at random may need more replicas: "
    "`sextant capacity` simulates them.",
)
_OF_POOL = {each.name for each in fields(Pool)} - {"gpu_id", "is_owned"}


class Wanted(NamedTuple):
    """A row of the sheet of demands."""

    demand: Demand
    hf_config: Path | None
    requests: Requests | None
    """None: those of the characterization."""
    line: int
    notes: tuple[str, ...]


def read_supply(path: Path, folder: Path = GPUS) -> tuple[list[Pool], dict[str, GPU]]:
    """Return the pools, and facts of their devices by `gpu_id`; MIG slices have ids of their own.

    `folder` has the facts of devices.

    Raises:
        InputError: a row is wrong, a GPU has no facts, or there is not one node.
    """
    pools, gpus = [], {}
    for row in load_sheet(path, SCHEMAS / "supply.schema.yaml", "pool_id"):
        try:
            gpu = load_gpu(folder, row["gpu_id"])
        except InputError as error:
            known = ", ".join(sorted(each.stem for each in folder.glob("*.yaml")))
            fix = f"use one of {known}, or write its facts into {folder}"
            raise InputError(
                error.problem, file=path, row=row.line, field="gpu_id", fix=fix
            ) from None
        if "mig_profile" in row:
            try:
                gpu = mig_slice(gpu, row["mig_profile"])
            except InputError as error:
                raise error.at(file=path, row=row.line) from None
        gpus[gpu.gpu_id] = gpu
        given = {name: row[name] for name in _OF_POOL if name in row}
        pools.append(Pool(gpu_id=gpu.gpu_id, is_owned=row["kind"] == "owned", **given))
    if not sum(pool.nodes for pool in pools):
        raise InputError("there is no node", file=path, field="nodes", fix="give at least one")
    return pools, gpus


def read_demands(path: Path, traces: Path) -> list[Wanted]:
    """Return what is wanted; `<trace_id>.parquet` in `traces` are the traces that rows name.

    Raises:
        InputError: a row is wrong or contradicts itself, or a trace cannot be read.
    """
    rows = load_sheet(path, SCHEMAS / "demands.schema.yaml", "demand_id")
    found = []
    for row in rows:
        try:
            found.append(_wanted(row, traces))
        except InputError as error:
            raise error.at(file=path, row=row.line) from None
    return found


def _wanted(row: Row, traces: Path) -> Wanted:
    if ("llm_id" in row) == ("hf_config" in row):
        fix = "give the one or the other"
        raise InputError("one LLM is needed", field="llm_id, hf_config", fix=fix)
    hf_config = Path(row["hf_config"]) if "hf_config" in row else None
    limits = {name: value for name, value in row.items() if name not in (*_OWN, "trace_id")}
    lengths = {name: row[name] for name in LENGTHS if name in row}
    requests, hours = _lengths(lengths), _Hours(0.0)
    if "trace_id" in row:
        trace = traces / f"{file_name(row['trace_id'])}.parquet"
        if not trace.is_file():
            fix = f"ingest it to {trace} (`sextant ingest`), or name its folder (--traces)"
            raise InputError(f"{trace} does not exist", field="trace_id", fix=fix)
        requests = requests or requests_of(None, None, str(trace))
        hours = _hours(trace)
        if not {"users", "request_rate_rps"} & limits.keys():
            limits["request_rate_rps"] = hours.peak_rps
    slo = SLO(row["demand_id"], **limits)
    own = {name: row[name] for name in _OPTIONAL if name in row}
    llm_id = row["llm_id"] if hf_config is None else name_of(hf_config)
    demand = Demand(row["demand_id"], row["team"], llm_id, slo, load_shares=hours.shares, **own)
    notes = _MEANS if "trace_id" in row else _STEADY * (slo.request_rate_rps is not None)
    return Wanted(demand, hf_config, requests, row.line, hours.notes + notes)


def _lengths(given: dict[str, Any]) -> Requests | None:
    if not given:
        return None
    if len(given) == 1:
        fix = "give both, or neither"
        raise InputError("one length alone is given", field=", ".join(LENGTHS), fix=fix)
    return Requests(*(Length(float(given[name]), float(given[name])) for name in LENGTHS))


class _Hours(NamedTuple):
    """The traffic of a trace by the hour of the day."""

    peak_rps: float
    """Mean rate of the busiest hour."""
    shares: tuple[float, ...] = (1.0,)
    """Rates as shares of that."""
    notes: tuple[str, ...] = ()


def _hours(trace: Path) -> _Hours:
    """Return the busiest hour of a trace, and the hours of the day.

    An hour of the day has the rate of the busiest such hour of all days. Of a trace without a
    whole day nothing is known of other hours: the load is that of the busiest one all day.
    """
    series = traffic_series(trace, HOUR_S, by=())
    whole = series[series["is_whole"]]
    if len(whole) < HOURS:
        note = f"{trace.stem} has less than {HOURS} whole hours: its busiest one is taken for all."
        if whole.empty:
            minutes = traffic_series(trace, MINUTE_S, by=())["n_requests"]
            return _Hours(float(minutes.mean() / MINUTE_S), notes=(note,))
        return _Hours(float(whole["n_requests"].max() / HOUR_S), notes=(note,))
    is_dated = bool(whole["moment"].notna().all())
    since = whole["start_s"] // HOUR_S % HOURS
    hour = (whole["moment"].dt.hour if is_dated else since).astype(int).to_numpy()
    rates = whole.groupby(hour)["n_requests"].max().to_numpy() / HOUR_S
    note = f"{trace.stem} has no date: its first hour is taken for 0:00."
    shares = tuple((rates / rates.max()).tolist())
    return _Hours(float(rates.max()), shares, () if is_dated else (note,))
