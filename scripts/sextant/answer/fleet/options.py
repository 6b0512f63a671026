"""From the sheets of demands and supply to the options of all demands, and to the answer.

A trace counts by the mean rates of its hours: bursts within an hour are not known here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sextant.answer.candidates import Subject, subject_of
from sextant.answer.fleet.planning import RISK, TIME_LIMIT_S, answer_fleet
from sextant.answer.predicted import Fitted, Forecast, fit_to, forecast_of
from sextant.answer.question import (
    Length,
    Question,
    Requests,
    check,
    make_predictor,
    named_llm,
    requests_of,
)
from sextant.answer.source import (
    Source,
    as_measured,
    estimates,
    find_source,
    outside_basis,
    warning,
)
from sextant.base.errors import InputError
from sextant.base.job_log import Progress
from sextant.base.sheets import Row, file_name, load_sheet
from sextant.decide.decision import sustained
from sextant.decide.fleet import Demand, FleetAnswer, Option, Pool
from sextant.experiment.sheets import DemandRow, SupplyRow
from sextant.facts.gpu import GPU, GPUS, GPUProfile, is_slice, load_gpu, mig_slice
from sextant.facts.llm import name_of
from sextant.facts.slo import SLO
from sextant.points.frame import LENGTHS
from sextant.predict import Draws, JointPredictor
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
LOOSER = (1.25, 1.5, 2.0)
"""Factors on the limits of a demand that are tried."""
_N_NAMED = 8
_MOST_GPUS = 8
"""Most devices of a replica: no more were measured anywhere."""
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

    Raises InputError: a row is wrong, a GPU has no facts, or there is not one node.
    """
    pools, gpus = [], {}
    for row in load_sheet(path, SupplyRow, "pool_id"):
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
    """Return the rows of the sheet; `<trace_id>.parquet` in `traces` are the traces they name.

    Raises InputError: a row is wrong or contradicts itself, or a trace cannot be read.
    """
    wanted = []
    for row in load_sheet(path, DemandRow, "demand_id"):
        try:
            wanted.append(_wanted(row, traces))
        except InputError as error:
            raise error.at(file=path, row=row.line) from None
    return wanted


def _wanted(row: Row, traces: Path) -> Wanted:
    if ("llm_id" in row) == ("hf_config" in row):
        fix = "give the one or the other"
        raise InputError("one LLM is needed", field="llm_id, hf_config", fix=fix)
    hf_config = Path(row["hf_config"]) if "hf_config" in row else None
    limits = {name: value for name, value in row.items() if name not in (*_OWN, "trace_id")}
    lengths = {name: row[name] for name in LENGTHS if name in row}
    if len(lengths) == 1:
        fix = "give both, or neither"
        raise InputError("one length alone is given", field=", ".join(LENGTHS), fix=fix)
    requests, hours = None, _Hours(0.0)
    if lengths:
        requests = Requests(*(Length(float(each), float(each)) for each in lengths.values()))
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


class _Hours(NamedTuple):
    """The traffic of a trace by the hour of the day."""

    peak_rps: float
    """Mean rate of the busiest hour."""
    shares: tuple[float, ...] = (1.0,)
    """Rates as shares of that."""
    notes: tuple[str, ...] = ()


def _hours(trace: Path) -> _Hours:
    """Return the busiest hour of a trace, and the hours of the day.

    An hour of the day has the rate of the busiest such hour of all days. A trace without a whole
    day has the rate of its busiest hour all day.
    """
    series = traffic_series(trace, HOUR_S, by=())
    whole = series[series["is_whole"]]
    if len(whole) < HOURS:
        note = f"{trace.stem} has less than {HOURS} whole hours: its busiest one is used for all."
        if whole.empty:
            minutes = traffic_series(trace, MINUTE_S, by=())["n_requests"]
            return _Hours(float(minutes.mean() / MINUTE_S), notes=(note,))
        return _Hours(float(whole["n_requests"].max() / HOUR_S), notes=(note,))
    is_dated = bool(whole["moment"].notna().all())
    since = whole["start_s"] // HOUR_S % HOURS
    hour = (whole["moment"].dt.hour if is_dated else since).astype(int).to_numpy()
    rates = whole.groupby(hour)["n_requests"].max().to_numpy() / HOUR_S
    note = f"{trace.stem} has no date: its first hour is used as 0:00."
    shares = tuple((rates / rates.max()).tolist())
    return _Hours(float(rates.max()), shares, () if is_dated else (note,))


@dataclass(frozen=True)
class FleetQuestion:
    """The sheets, the measurements to use, and how to plan."""

    demands: Path
    supply: Path
    traces: Path = Path("results") / "traces"
    """Folder of the traces that demands name."""
    measurements: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a `Question` that name the measurements: `sources`, `database`, `seed` …"""
    risk: float = RISK
    is_elastic: bool = False
    time_limit_s: float = TIME_LIMIT_S
    """Of one program."""
    gpus: Path = GPUS
    """Folder of the facts of devices."""


def answer_sheets(question: FleetQuestion) -> FleetAnswer:
    """Return which demand gets which devices.

    Raises InputError: an option or a row is wrong, or the measurements cannot answer.
    """
    if not 0 < question.risk < 1:
        fix = "give a probability between 0 and 1, e.g. 0.1"
        raise InputError(f"{question.risk:g} is not a risk", field="--risk", fix=fix)
    pools, gpus = read_supply(question.supply, question.gpus)
    wanted = read_demands(question.demands, question.traces)
    demands = [each.demand for each in wanted]
    base = Question(demands[0].slo, **question.measurements)
    options, looser, warnings = find_options(wanted, pools, gpus, base, question.demands)
    return answer_fleet(
        demands,
        pools,
        options,
        looser,
        risk=question.risk,
        is_elastic=question.is_elastic,
        time_limit_s=question.time_limit_s,
        warnings=warnings,
    )


def find_options(
    wanted: Sequence[Wanted],
    pools: Sequence[Pool],
    gpus: Mapping[str, GPU],
    base: Question,
    sheet: Path,
) -> tuple[list[Option], dict[str, dict[float, list[Option]]], list[str]]:
    """Return the options of all demands, those with looser limits by demand, and warnings.

    `base` has the measurements to use, the predictor and the seed. A demand whose LLM fits on no
    profile has no options, and a warning with the reason.

    Raises InputError: an LLM has no facts, or the measurements cannot answer.
    """
    profiles = candidate_profiles(pools, gpus)
    lengths, first = [each.requests for each in wanted], wanted[0].demand
    config = wanted[0].hf_config
    llm = {"hf_config": config} if config else {"llm_id": first.llm_id}
    of_first = replace(base, slo=first.slo, gpu_profile_ids=tuple(profiles), **llm)
    requests = None if None in lengths else lengths[0]
    try:
        source = find_source(replace(of_first, requests=requests))
    except InputError as error:
        if error.field != "--llm":
            raise
        raise error.at(file=sheet, row=wanted[0].line, field="llm_id") from None
    questions = []  # all, before the first is fitted
    for each in wanted:
        try:
            questions.append(_question(each, source, base))
        except InputError as error:
            raise error.at(file=sheet, row=each.line) from None
    options: list[Option] = []
    looser: dict[str, dict[float, list[Option]]] = {}
    warnings: dict[str, list[str]] = {}
    fits: dict[tuple[Any, ...], tuple[JointPredictor, Fitted]] = {}
    progress = Progress("demand", len(wanted))
    for each, (question, notes) in zip(wanted, questions, strict=True):
        progress.step(each.demand.demand_id)
        subject, outside = _subject(question, source, profiles)
        if subject is not None:
            forecast, demand = _forecast(question, subject, fits), each.demand
            slos = {factor: demand.slo.scaled(limits=factor) for factor in LOOSER}
            own, *others = (
                options_of_draws(demand, forecast.draws_for(slo), forecast.subject.profiles, slo)
                for slo in (demand.slo, *slos.values())
            )
            options += own
            looser[demand.demand_id] = dict(zip(slos, others, strict=True))
        for text in [*each.notes, *notes, *outside]:
            warnings.setdefault(text, []).append(each.demand.demand_id)
    progress.note("sharing out the devices")
    progress.close()
    return options, looser, [f"{_names(names)}: {text}" for text, names in warnings.items()]


def _names(names: Sequence[str]) -> str:
    if len(names) <= _N_NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_N_NAMED])} and {len(names) - _N_NAMED} more"


def options_of_draws(
    demand: Demand, draws: Draws, profiles: Mapping[str, GPUProfile], slo: SLO
) -> list[Option]:
    """Return an option for each GPU profile that serves the demand in some draw.

    `draws` are of the latencies of its LLM on these profiles, whose prices are not used; `slo` is
    the demand's own, or has looser limits.
    """
    served = sustained(draws, slo, of_load=True)
    loads = slo.load * np.array(demand.load_shares)
    options = []
    for llm_id, name in served.columns:
        by_draw, profile = served[llm_id, name].to_numpy(float), profiles[name]
        if by_draw.any():
            gpu_id = profile.gpu.gpu_id
            options.append(Option(demand.demand_id, name, gpu_id, profile.n_gpus, by_draw, loads))
    return options


def _question(wanted: Wanted, source: Source, base: Question) -> tuple[Question, list[str]]:
    """Return the question of a demand, and notes. Raises InputError where facts are missing."""
    demand, config, known = wanted.demand, wanted.hf_config, source.known
    if config is None and demand.llm_id not in known.llms:
        problem = f"{known.source} has no facts of LLM {demand.llm_id!r}"
        fix = f"give its config.json (hf_config), or one of {', '.join(known.llms)}"
        raise InputError(problem, field="llm_id", fix=fix)
    llm_id = demand.llm_id if config is None else None
    question = replace(
        base, slo=demand.slo, llm_id=llm_id, hf_config=config, requests=wanted.requests
    )
    check(question)
    question, notes = as_measured(question, known, has_options=False)
    named_llm(question, known)
    return question, [*notes, *estimates(known.points, demand.slo)]


def _subject(
    question: Question, source: Source, profiles: dict[str, GPUProfile]
) -> tuple[Subject | None, list[str]]:
    """Return the LLM with the measured ones, None if no profile can serve it, and warnings."""
    llm_id, llm = named_llm(question, source.known)
    try:
        subject = subject_of(question, llm_id, llm, source, profiles)
    except InputError as error:
        return None, [str(error)]
    lengths = dict(zip(LENGTHS, subject.lengths[0], strict=True))
    clauses = outside_basis(question, source, llm, lengths, profiles)
    return subject, warning(clauses, source)


def _forecast(
    question: Question, subject: Subject, fits: dict[tuple[Any, ...], tuple[JointPredictor, Fitted]]
) -> Forecast:
    """Return the joint draws of an LLM; demands whose limits are alike share a fit in `fits`."""
    slo, every = question.slo, {**subject.source.known.profiles, **subject.profiles}
    model = make_predictor(question, every)
    assert isinstance(model, JointPredictor)  # the default predictor is one
    key = tuple(getattr(slo, name) for name in model.depends_on)
    if key not in fits:
        fits[key] = model, fit_to(model, subject, slo)
    return forecast_of(*fits[key], subject, slo)


def candidate_profiles(pools: Sequence[Pool], gpus: Mapping[str, GPU]) -> dict[str, GPUProfile]:
    """Return the profiles that nodes have room for: 1, 2, 4 … devices, at the lowest price.

    Slices of a GPU serve alone: they have no connection among each other.
    """
    profiles = {}
    for gpu_id, gpu in gpus.items():
        own = [pool for pool in pools if pool.gpu_id == gpu_id]
        most = 1 if is_slice(gpu_id) else min(max(p.devices_per_node for p in own), _MOST_GPUS)
        usd = min(pool.usd_per_hour for pool in own)
        for n in (2**i for i in range(most.bit_length())):
            profiles[f"{n}x{gpu_id}"] = GPUProfile(f"{n}x{gpu_id}", gpu, n, n * usd)
    return profiles
