"""From the sheets of demands and supply to the options of all demands, and to the answer.

A trace counts by the mean rate of its busiest hour: bursts within it are not known here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from sextant.ask import question as questions
from sextant.ask import source as sources
from sextant.ask.candidates import Subject, subject_of
from sextant.ask.forecast import fit_to, forecast_of
from sextant.ask.question import Question
from sextant.ask.source import Source, find_source
from sextant.base.errors import InputError
from sextant.base.job_log import Progress
from sextant.base.sheets import Row, file_name, load_sheet
from sextant.decide.decision import sustained
from sextant.decide.fleet import FleetAnswer, FleetDemand, FleetOption, GPUPool
from sextant.experiment.sheets import DemandRow, SupplyRow
from sextant.facts.gpu import GPU, GPUS, GPUProfile, is_slice, load_gpu, mig_slice
from sextant.facts.llm import name_of
from sextant.facts.slo import SLO
from sextant.fleet.plan import RISK, TIME_LIMIT_S, answer_fleet
from sextant.points.frame import LENGTHS
from sextant.predict.draws import Draws
from sextant.workload.lengths import Length, RequestLengths, parse_lengths
from sextant.workload.profiles import HOUR_S, traffic_series

_OPTIONAL = ("priority", "least_replicas")
_OWN = ("demand_id", "team", "llm_id", "hf_config", "trace_id", *_OPTIONAL, *LENGTHS)
_SIMULATED = {
    "trace": "its busiest hour has its mean rate; `sextant capacity` simulates bursts within it.",
    "rate": "the rate is taken as a steady load; requests that arrive at random may need more "
    "replicas: `sextant capacity` simulates them.",
}
LOOSER = (1.25, 1.5, 2.0)  # Factors on the limits of a demand that are tried.
_MOST_GPUS = 8  # Most devices of a replica: no more were measured anywhere.


class Wanted(NamedTuple):
    """A row of the sheet of demands."""

    demand: FleetDemand
    hf_config: Path | None
    requests: RequestLengths | None  #: None: those of the characterization.
    line: int
    notes: tuple[str, ...]

    def question(self, base: Question) -> Question:
        """Return the question of the demand."""
        slo, config = self.demand.slo, self.hf_config
        llm_id = self.demand.llm_id if config is None else None
        return replace(base, slo=slo, llm_id=llm_id, hf_config=config, requests=self.requests)


def read_supply(path: Path, folder: Path = GPUS) -> tuple[list[GPUPool], dict[str, GPU]]:
    """Return the pools, and the facts of their devices; MIG slices have `gpu_id`s of their own.
    Raises InputError: a row is wrong, a GPU has no facts, or there is not one node."""
    pools, gpus = [], {}
    for row in load_sheet(path, SupplyRow, "pool_id"):
        try:
            gpu = load_gpu(folder, row["gpu_id"])
        except InputError as error:
            known = ", ".join(sorted(each.stem for each in folder.glob("*.yaml")))
            fix = f"use one of {known}, or write its facts into {folder}"
            raise row.error(error.problem, "gpu_id", fix) from None
        if "mig_profile" in row:
            try:
                gpu = mig_slice(gpu, row["mig_profile"])
            except InputError as error:
                raise error.at(file=path, row=row.line) from None
        gpus[gpu.gpu_id] = gpu
        given = {each.name: row[each.name] for each in fields(GPUPool) if each.name in row}
        pools.append(GPUPool(**given | {"gpu_id": gpu.gpu_id, "is_owned": row["kind"] == "owned"}))
    if not sum(pool.nodes for pool in pools):
        raise InputError("there is no node", file=path, field="nodes", fix="give at least one")
    return pools, gpus


def read_demands(path: Path, traces: Path) -> list[Wanted]:
    """Return the rows of the sheet; `<trace_id>.parquet` in `traces` are the traces they name.
    Raises InputError: a row is wrong or contradicts itself, or a trace cannot be read."""
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
    limits = {name: value for name, value in row.items() if name not in _OWN}
    given = [Length(float(row[name]), float(row[name])) for name in LENGTHS if name in row]
    if len(given) == 1:
        fix = "give both, or neither"
        raise InputError("one length alone is given", field=", ".join(LENGTHS), fix=fix)
    requests, notes = RequestLengths(*given) if given else None, list[str]()
    if "trace_id" in row:
        trace = traces / f"{file_name(row['trace_id'])}.parquet"
        if not trace.is_file():
            fix = f"ingest it to {trace} (`sextant ingest`), or name its folder (--traces)"
            raise InputError(f"{trace} does not exist", field="trace_id", fix=fix)
        requests = requests or parse_lengths(None, None, str(trace))
        if not {"users", "request_rate_rps"} & limits.keys():
            hours = traffic_series(trace, HOUR_S, by=())
            whole = hours[hours["is_whole"]]["n_requests"]
            if len(whole) < 24:
                notes.append(f"{trace.stem} has less than 24 whole hours, maybe not the busiest.")
            if whole.empty:
                minutes = traffic_series(trace, 60.0, by=())["n_requests"]
                limits["request_rate_rps"] = float(minutes.mean() / 60.0)
            else:
                limits["request_rate_rps"] = float(whole.max() / HOUR_S)
    slo = SLO(row["demand_id"], **limits)
    own = {name: row[name] for name in _OPTIONAL if name in row}
    llm_id = row["llm_id"] if hf_config is None else name_of(hf_config)
    demand = FleetDemand(row["demand_id"], row["team"], llm_id, slo, **own)
    if slo.request_rate_rps is not None:
        notes.append(_SIMULATED["trace" if "trace_id" in row else "rate"])
    return Wanted(demand, hf_config, requests, row.line, tuple(notes))


def answer_sheets(
    demands: Path,
    supply: Path,
    traces: Path,
    measurements: Mapping[str, Any],
    risk: float = RISK,
    time_limit_s: float = TIME_LIMIT_S,
    gpus: Path = GPUS,
) -> FleetAnswer:
    """Return which demand gets which devices, by the sheets `demands` and `supply`. `traces` and
    `gpus` are folders; `measurements` are the fields of a `Question` that name them. Raises
    InputError: an option or a row is wrong, or the measurements cannot answer."""
    if not 0 < risk < 1:
        fix = "give a probability between 0 and 1, e.g. 0.1"
        raise InputError(f"{risk:g} is not a risk", field="--risk", fix=fix)
    pools, known_gpus = read_supply(supply, gpus)
    wanted = read_demands(demands, traces)
    asked = [each.demand for each in wanted]
    profiles, base = candidate_profiles(pools, known_gpus), Question(asked[0].slo, **measurements)
    options, looser, warnings = _find_options(wanted, profiles, base, demands)
    how: dict[str, Any] = {"risk": risk, "time_limit_s": time_limit_s, "warnings": warnings}
    return answer_fleet(asked, pools, options, looser, **how)


def _find_options(
    wanted: Sequence[Wanted], profiles: dict[str, GPUProfile], base: Question, sheet: Path
) -> tuple[list[FleetOption], dict[str, dict[float, list[FleetOption]]], list[str]]:
    """Return all demands' options, those with looser limits by demand, and warnings. `base` has the
    measurements to use, the predictor and the seed. A demand that fits nowhere has no options, and
    a warning. Raises InputError: an LLM has no facts, or the measurements cannot answer."""
    of_first = replace(wanted[0].question(base), gpu_profile_ids=tuple(profiles))
    if None in [each.requests for each in wanted]:
        of_first = replace(of_first, requests=None)
    try:
        source = find_source(of_first)
    except InputError as error:
        if error.field != "--llm":
            raise
        raise error.at(file=sheet, row=wanted[0].line, field="llm_id") from None
    asked = []  # all, before the first is fitted
    for each in wanted:
        try:
            asked.append(_question(each, source, base))
        except InputError as error:
            raise error.at(file=sheet, row=each.line) from None
    options: list[FleetOption] = []
    looser: dict[str, dict[float, list[FleetOption]]] = {}
    warnings: dict[str, list[str]] = {}
    fits: dict[tuple[Any, ...], Any] = {}  # shared by limits at the same percentiles
    progress = Progress("demand", len(wanted))
    for each, (question, notes) in zip(wanted, asked, strict=True):
        demand = each.demand
        progress.step(demand.demand_id)
        llm_id, facts = questions.named_llm(question, source.known)
        try:
            subject = subject_of(question, llm_id, facts, source, profiles)
        except InputError as error:  # no profile can serve it
            outside = [str(error)]
        else:
            asked_of = question, source, facts, subject.mean_lengths, profiles
            outside = sources.warning(sources.outside_basis(*asked_of), source)
            own, looser[demand.demand_id] = _options(demand, question, subject, fits)
            options += own
        for text in [*each.notes, *notes, *outside]:
            warnings.setdefault(text, []).append(demand.demand_id)
    progress.note("sharing out the devices")
    progress.close()
    return options, looser, [f"{', '.join(names)}: {text}" for text, names in warnings.items()]


def _options(
    demand: FleetDemand, question: Question, subject: Subject, fits: dict[tuple[Any, ...], Any]
) -> tuple[list[FleetOption], dict[float, list[FleetOption]]]:
    """Return a demand's options, and those with looser limits by factor."""
    slo, profiles = demand.slo, subject.profiles
    model = questions.make_predictor(question, {**subject.source.known.profiles, **profiles})
    key = tuple(getattr(slo, name) for name in model.depends_on)
    if key not in fits:
        fits[key] = model, fit_to(model, subject, slo)
    forecast = forecast_of(fits[key][0], fits[key][1], subject, slo)
    own, *others = (
        options_of_draws(demand, forecast.draws_for(at), profiles, at)
        for at in (slo, *(slo.scaled(limits=factor) for factor in LOOSER))
    )
    return own, dict(zip(LOOSER, others, strict=True))


def options_of_draws(
    demand: FleetDemand, draws: Draws, profiles: Mapping[str, GPUProfile], slo: SLO
) -> list[FleetOption]:
    """Return an option for each GPU profile that serves a demand in some draw. `draws` are of the
    latencies of its LLM on these profiles, without prices; `slo` is the demand's own, or looser."""
    served = sustained(draws, slo, of_load=True)
    options = []
    for llm_id, name in served.columns:
        by_draw, profile = served[llm_id, name].to_numpy(float), profiles[name]
        if by_draw.any():
            devices = profile.gpu.gpu_id, profile.n_gpus
            options.append(FleetOption(demand.demand_id, name, *devices, by_draw, slo.load))
    return options


def _question(wanted: Wanted, source: Source, base: Question) -> tuple[Question, list[str]]:
    """Return the question of a demand, and notes. Raises InputError where facts are missing."""
    demand, known = wanted.demand, source.known
    if wanted.hf_config is None and demand.llm_id not in known.llms:
        problem = f"{known.source} has no facts of LLM {demand.llm_id!r}"
        fix = f"give its config.json (hf_config), or one of {', '.join(known.llms)}"
        raise InputError(problem, field="llm_id", fix=fix)
    questions.check_question(question := wanted.question(base))
    question, notes = sources.as_measured(question, known, has_options=False)
    questions.named_llm(question, known)
    return question, [*notes, *sources.estimates(known.points, demand.slo)]


def candidate_profiles(pools: Sequence[GPUPool], gpus: Mapping[str, GPU]) -> dict[str, GPUProfile]:
    """Return the profiles that nodes have room for: 1, 2, 4 … devices, at the lowest price. Slices
    of a GPU serve alone: they have no connection among each other."""
    profiles = {}
    for gpu_id, gpu in gpus.items():
        own = [pool for pool in pools if pool.gpu_id == gpu_id]
        most = 1 if is_slice(gpu_id) else min(max(p.devices_per_node for p in own), _MOST_GPUS)
        usd = min(pool.usd_per_hour for pool in own)
        for n in (2**i for i in range(most.bit_length())):
            profiles[f"{n}x{gpu_id}"] = GPUProfile(f"{n}x{gpu_id}", gpu, n, n * usd)
    return profiles
