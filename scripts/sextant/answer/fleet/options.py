"""The two sheets of a fleet: demands and supply.

A trace counts by the mean rate of its hours: bursts within them are not known here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sextant.answer.basis import as_measured, estimates, outside_basis, warning
from sextant.answer.candidates import Subject, subject_of
from sextant.answer.fleet.planning import RISK, TIME_LIMIT_S, answer_fleet
from sextant.answer.fleet.problem import Demand, FleetAnswer, Option, Pool
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
from sextant.answer.source import Source, find_source
from sextant.base.errors import InputError
from sextant.base.ids import file_name
from sextant.base.sheets import Row, load_sheet
from sextant.decide.decision import sustained
from sextant.decide.sizing import load_served
from sextant.experiment.sheets import DemandRow, SupplyRow
from sextant.facts.gpu import GPU, GPUS, GPUProfile, is_slice, load_gpu, mig_slice
from sextant.facts.llm.config import name_of
from sextant.facts.slo import SLO
from sextant.points.characterization import Characterization
from sextant.points.frame import LENGTHS
from sextant.predict.latencies import Draws
from sextant.predict.protocols import JointPredictor
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
    """Return what is wanted; `<trace_id>.parquet` in `traces` are the traces that rows name.

    Raises:
        InputError: a row is wrong or contradicts itself, or a trace cannot be read.
    """
    rows = load_sheet(path, DemandRow, "demand_id")
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


LOOSER = (1.25, 1.5, 2.0)
"""Factors on the limits of a demand that are tried."""
_N_NAMED = 8
_MOST_GPUS = 8
"""Most devices of a replica that are offered: no more were measured anywhere."""


class Found(NamedTuple):
    """What a predictor says of all demands."""

    options: list[Option]
    looser: dict[str, dict[float, list[Option]]]
    """Options with limits that are looser by a factor, by demand."""
    warnings: list[str]
    source: Source


def find_options(
    wanted: Sequence[Wanted],
    pools: Sequence[Pool],
    gpus: Mapping[str, GPU],
    base: Question,
    sheet: Path,
) -> Found:
    """Return the options of all demands, by the same measurements.

    `base` has the measurements to use, the predictor and the seed. A demand whose LLM fits on no
    profile has no options, and a warning says why.

    Raises:
        InputError: an LLM has no facts, or the measurements cannot answer.
    """
    profiles = offered_profiles(pools, gpus)
    predictions = _Predictions(_source(wanted, profiles, base), profiles, base)
    found = Found([], {}, [], predictions.source)
    told: dict[str, list[str]] = {}
    asked = [predictions.asked(each, sheet) for each in wanted]  # all, before the first is fitted
    for each, (question, said) in zip(wanted, asked, strict=True):
        subject, outside = predictions.subject(question)
        if subject is not None:
            _add(found, each.demand, predictions.forecast(question, subject))
        for text in [*each.notes, *said, *outside]:
            told.setdefault(text, []).append(each.demand.demand_id)
    found.warnings.extend(f"{_few(names)}: {text}" for text, names in told.items())
    return found


def _few(names: Sequence[str]) -> str:
    if len(names) <= _N_NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_N_NAMED])} and {len(names) - _N_NAMED} more"


def _source(wanted: Sequence[Wanted], profiles: Mapping[str, GPUProfile], base: Question) -> Source:
    """Return the measurements that answer for all demands."""
    lengths = [each.requests for each in wanted]
    first = wanted[0].demand
    asked = replace(
        base,
        slo=first.slo,
        llm_id=first.llm_id,
        requests=None if None in lengths else lengths[0],
        gpu_profile_ids=tuple(profiles),
    )
    return find_source(asked)


def _add(found: Found, demand: Demand, made: Forecast) -> None:
    slos = {factor: demand.slo.scaled(limits=factor) for factor in LOOSER}
    options, *looser = (
        options_of_draws(demand, made.draws_for(slo), made.subject.profiles, slo)
        for slo in (demand.slo, *slos.values())
    )
    found.options.extend(options)
    found.looser[demand.demand_id] = dict(zip(slos, looser, strict=True))


def options_of_draws(
    demand: Demand, draws: Draws, profiles: Mapping[str, GPUProfile], slo: SLO
) -> list[Option]:
    """Return an option for each GPU profile that serves the demand in some draw.

    Args:
        demand: what is wanted.
        draws: joint draws of the latencies of its LLM, on these profiles.
        profiles: facts of the profiles; their prices play no part.
        slo: the demand's own, or looser limits.
    """
    served = sustained(draws, slo, load_served)
    loads = slo.load * np.array(demand.load_shares)
    return [
        Option(
            demand.demand_id,
            name,
            profiles[name].gpu.gpu_id,
            profiles[name].n_gpus,
            served[llm_id, name].to_numpy(float),
            loads,
        )
        for llm_id, name in served.columns
        if served[llm_id, name].any()
    ]


@dataclass
class _Predictions:
    """Predicts for one demand after another; demands whose limits are alike share a fit."""

    source: Source
    profiles: dict[str, GPUProfile]
    base: Question
    _fits: dict[tuple, tuple[JointPredictor, Fitted]] = field(default_factory=dict)

    def asked(self, wanted: Wanted, sheet: Path) -> tuple[Question, list[str]]:
        """Return what a demand asks, and what to say of it. Raises InputError for no facts."""
        try:
            return self._asked(wanted)
        except InputError as error:
            raise error.at(file=sheet, row=wanted.line) from None

    def _asked(self, wanted: Wanted) -> tuple[Question, list[str]]:
        demand, config, known = wanted.demand, wanted.hf_config, self.source.known
        if config is None and demand.llm_id not in known.llms:
            problem = f"{known.source} has no facts of LLM {demand.llm_id!r}"
            fix = f"give its config.json (hf_config), or one of {', '.join(known.llms)}"
            raise InputError(problem, field="llm_id", fix=fix)
        question = replace(
            self.base,
            slo=demand.slo,
            llm_id=demand.llm_id if config is None else None,
            hf_config=config,
            requests=wanted.requests,
        )
        check(question)
        question, said = as_measured(question, known, has_options=False)
        named_llm(question, known)
        return question, [*said, *estimates(known.points, demand.slo)]

    def subject(self, question: Question) -> tuple[Subject | None, list[str]]:
        """Return the LLM beside the measured ones, None if no profile can serve it, and why."""
        llm_id, llm = named_llm(question, self.source.known)
        try:
            subject = subject_of(question, llm_id, llm, self.source, self.profiles)
        except InputError as error:
            return None, [str(error)]
        lengths = dict(zip(LENGTHS, subject.lengths[0], strict=True))
        clauses = outside_basis(question, self.source, llm, lengths, self.profiles)
        return subject, warning(clauses, self.source)

    def forecast(self, question: Question, subject: Subject) -> Forecast:
        """Return the joint draws of an LLM."""
        slo = question.slo
        model = make_predictor(question, {**self.source.known.profiles, **self.profiles})
        assert isinstance(model, JointPredictor)  # the default predictor is one
        key = tuple(getattr(slo, name) for name in model.depends_on)
        if key not in self._fits:
            self._fits[key] = model, fit_to(model, subject, slo)
        return forecast_of(*self._fits[key], subject, slo)


def offered_profiles(pools: Sequence[Pool], gpus: Mapping[str, GPU]) -> dict[str, GPUProfile]:
    """Return the profiles that nodes have room for: 1, 2, 4 … devices, at the lowest price.

    Slices of a GPU serve alone: they have no connection among each other.
    """
    found = {}
    for gpu_id, gpu in gpus.items():
        own = [pool for pool in pools if pool.gpu_id == gpu_id]
        most = 1 if is_slice(gpu_id) else min(max(p.devices_per_node for p in own), _MOST_GPUS)
        usd = min(pool.usd_per_hour for pool in own)
        for n in (2**i for i in range(most.bit_length())):
            found[f"{n}x{gpu_id}"] = GPUProfile(f"{n}x{gpu_id}", gpu, n, n * usd)
    return found


TRACES = Path("results") / "traces"


@dataclass(frozen=True)
class Asked:
    """What `sextant fleet` is asked."""

    demands: Path
    supply: Path
    traces: Path = TRACES
    """Folder of the traces that demands name."""
    sources: tuple[str, ...] = ()
    database: Path | None = None
    workload_id: str | None = None
    scenario_id: str | None = None
    risk: float = RISK
    is_elastic: bool = False
    time_limit_s: float = TIME_LIMIT_S
    """Of one program."""
    seed: int = 42
    gpus: Path = GPUS
    """Folder of the facts of devices."""
    known: Characterization | None = None
    """Points that are read already, in place of `database` and `sources`."""


def fleet(asked: Asked) -> FleetAnswer:
    """Return who gets what.

    Raises:
        InputError: an option or a row is wrong, or the measurements cannot answer.
    """
    if not 0 < asked.risk < 1:
        fix = "give a probability between 0 and 1, e.g. 0.1"
        raise InputError(f"{asked.risk:g} is not a risk", field="--risk", fix=fix)
    pools, gpus = read_supply(asked.supply, asked.gpus)
    wanted = read_demands(asked.demands, asked.traces)
    demands = [each.demand for each in wanted]
    base = Question(
        demands[0].slo,
        known=asked.known,
        database=asked.database,
        sources=asked.sources,
        workload_id=asked.workload_id,
        scenario_id=asked.scenario_id,
        seed=asked.seed,
    )
    found = find_options(wanted, pools, gpus, base, asked.demands)
    return answer_fleet(
        demands,
        pools,
        found.options,
        found.looser,
        risk=asked.risk,
        is_elastic=asked.is_elastic,
        time_limit_s=asked.time_limit_s,
        warnings=found.warnings,
    )
