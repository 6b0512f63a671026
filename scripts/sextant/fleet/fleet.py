"""Answer which demand gets which devices: from the two sheets to the plan.

Each demand is a question of `ask`, answered on every GPU profile that the pools have room for; the
options of all demands share the draws of the law, so errors that demands share count once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.answer.rate_sizer import LITTLES_LAW, RateSizer, steady_note
from sextant.ask.case import Case
from sextant.ask.caveats import outside_warning
from sextant.ask.forecast import Fitted, fit_medians, fit_predictor, make_predictor
from sextant.ask.question import Question, check_question, check_risk, check_serving
from sextant.ask.serving import as_measured, config_notes, find_llm
from sextant.ask.source import Source, find_source
from sextant.base.errors import InputError
from sextant.base.job_log import Progress
from sextant.decide.decision import sustained
from sextant.decide.fleet import FleetDemand, FleetOption
from sextant.decide.sizing import size_replicas
from sextant.deploy.settings import settings_of
from sextant.facts.gpu import GPUS, GPUProfile
from sextant.facts.slo import SLO
from sextant.fleet.answer import FleetAnswer
from sextant.fleet.plan import RISK, TIME_LIMIT_S, answer_fleet
from sextant.fleet.sheets import SheetDemand, candidate_profiles, read_demands, read_supply
from sextant.predict.predictor import Draws

LOOSER = (1.25, 1.5, 2.0)  # Factors on the limits of a demand that are tried.
_SLACK = 1e-9
"""Of quotients: their last digits may be wrong."""


@dataclass(frozen=True, kw_only=True)
class FleetQuestion:
    """What is wanted, what there is, and how to plan."""

    demands: Path  #: Sheet of what teams want served.
    supply: Path  #: Sheet of the nodes.
    traces: Path  #: Folder of the normalised traces that demands name.
    base: Question
    """What the questions of all demands share: measurements, seed, how LLMs are served. Each demand
    has an LLM, an SLO and requests of its own."""
    risk: float = RISK  #: Largest probability that a served demand misses its limits.
    time_limit_s: float = TIME_LIMIT_S  #: For each solution; then the best plan so far is used.
    gpus: Path = GPUS  #: Folder of the facts of devices.


def answer_sheets(question: FleetQuestion) -> FleetAnswer:
    """Return which demand gets which devices. Raises InputError: an option or a row is wrong, or
    the measurements cannot answer."""
    check_risk(question.risk)
    check_serving(question.base)
    pools, gpus = read_supply(question.supply, question.gpus)
    sheet_demands = read_demands(question.demands, question.traces)

    # The measurements for all demands are those that the question of the first demand finds.
    first = sheet_demands[0]
    profiles = candidate_profiles(pools, gpus)
    first_question = replace(first.question(question.base), gpu_profile_ids=tuple(profiles))
    if any(sheet_demand.requests is None for sheet_demand in sheet_demands):
        first_question = replace(first_question, requests=None)
    try:
        source = find_source(first_question)
    except InputError as error:
        if error.field != "--llm":
            raise
        raise error.at(file=question.demands, row=first.line, field="llm_id") from None

    fleet_options = _find_options(sheet_demands, profiles, source, question)

    answer = answer_fleet(
        [sheet_demand.demand for sheet_demand in sheet_demands],
        pools,
        fleet_options.options,
        fleet_options.looser,
        risk=question.risk,
        time_limit_s=question.time_limit_s,
        warnings=fleet_options.warnings(),
    )
    return fleet_options.with_settings(answer)


@dataclass
class _FleetOptions:
    """What may serve the demands, collected demand by demand."""

    risk: float  #: Largest probability that a served demand misses its limits.
    options: list[FleetOption] = field(default_factory=list)
    looser: dict[str, dict[float, list[FleetOption]]] = field(default_factory=dict)
    """By demand and factor: options with limits that are looser by the factor."""
    demands_by_note: dict[str, list[str]] = field(default_factory=dict)
    fits: dict[tuple[Any, ...], Fitted] = field(default_factory=dict)
    """Fitted models by what a fit depends on: limits at the same percentiles share a fit."""
    cases: dict[str, Case] = field(default_factory=dict)
    """By demand."""
    sizers: dict[tuple[Any, ...], RateSizer | None] = field(default_factory=dict)
    """By LLM and requests; None where no law of a step is known."""

    def note(self, demand_id: str, notes: Sequence[str]) -> None:
        """Add notes about a demand; demands with the same note share a warning."""
        for note in notes:
            self.demands_by_note.setdefault(note, []).append(demand_id)

    def warnings(self) -> list[str]:
        """Return one warning per note, after the names of its demands."""
        return [
            f"{', '.join(demand_ids)}: {note}" for note, demand_ids in self.demands_by_note.items()
        ]

    def add(self, demand: FleetDemand, case: Case) -> None:
        """Add the options of a demand, with its own limits and with looser ones."""
        slos = [demand.slo, *(demand.slo.scaled(limits=factor) for factor in LOOSER)]
        sizer = None if demand.slo.request_rate_rps is None else self.sizer_of(case)
        if sizer is None:
            self.note(demand.demand_id, steady_note(demand.slo, LITTLES_LAW))
            fitted = self.fitted_for(demand, case)
            self.note(demand.demand_id, fitted.percentile_notes(case, demand.slo))
            forecast = fitted.forecast(case, demand.slo)
            needs = [needs_of_draws(forecast.draws_for(slo), slo) for slo in slos]
        else:
            needs = [sizer.needed(slo, [*sizer.servers]) for slo in slos]

        options, *looser = (fleet_options(demand, found, case.gpu_profiles) for found in needs)
        self.options += options
        self.cases[demand.demand_id] = case
        self.looser[demand.demand_id] = dict(zip(LOOSER, looser, strict=True))

    def with_settings(self, answer: FleetAnswer) -> FleetAnswer:
        """Return the answer with how the replicas of each served demand start."""
        notes = []
        settings = {}
        for served in answer.plan.served:
            demand_id = served.demand.demand_id
            case = self.cases[demand_id]
            settings[demand_id] = settings_of(case, case.gpu_profiles[served.gpu_profile_id])
            notes += [f"{demand_id}: {note}" for note in settings[demand_id].start_up.notes()]
        return replace(answer, settings=settings, warnings=(*answer.warnings, *notes))

    def sizer_of(self, case: Case) -> RateSizer | None:
        """Return what a rate is sized by, as in `recommend`; None: no law of a step is known."""
        question = case.question
        key = (question.llm_id, question.hf_config, question.requests, question.workload)
        if key not in self.sizers:
            try:
                self.sizers[key] = RateSizer.of(case, fit_medians(case), self.risk)
            except InputError:
                self.sizers[key] = None
        return self.sizers[key]

    def fitted_for(self, demand: FleetDemand, case: Case) -> Fitted:
        """Return a predictor that is fitted for the limits of a demand."""
        profiles = {**case.source.characterization.profiles, **case.gpu_profiles}
        model = make_predictor(case.question, profiles)
        key = tuple(getattr(demand.slo, name) for name in model.depends_on)
        if key not in self.fits:
            self.fits[key] = fit_predictor(model, case, demand.slo)
        return self.fits[key]


def _find_options(
    sheet_demands: Sequence[SheetDemand],
    profiles: Mapping[str, GPUProfile],
    source: Source,
    fleet_question: FleetQuestion,
) -> _FleetOptions:
    """Return the options of all demands. A demand that fits nowhere has none, and a warning.

    Raises InputError: an LLM has no facts, or the measurements cannot answer; the error names the
    row of the sheet.
    """
    prepared = []  # All demands are checked before the first fit.
    for sheet_demand in sheet_demands:
        try:
            prepared.append(_prepare(sheet_demand, source, fleet_question.base))
        except InputError as error:
            raise error.at(file=fleet_question.demands, row=sheet_demand.line) from None

    fleet_options = _FleetOptions(fleet_question.risk)
    progress = Progress("demand", len(sheet_demands))
    for sheet_demand, (question, notes) in zip(sheet_demands, prepared, strict=True):
        demand = sheet_demand.demand
        progress.step(demand.demand_id)
        llm = find_llm(question, source.characterization)
        case = Case(question, question, source, llm, profiles)
        notes = [*case.failure_notes, *sheet_demand.notes, *notes]
        fleet_options.note(demand.demand_id, notes)
        try:
            case.excluded  # noqa: B018  raises where no profile can serve it
        except InputError as error:
            if error.field is not None:  # an option that its LLM cannot be served with
                raise error.at(file=fleet_question.demands, row=sheet_demand.line) from None
            remedy = "add a pool of larger GPUs, or quantize the LLM (--dtype)"
            note = f"{error.problem}. Fix: {remedy}. A fleet keeps a replica on one node."
            fleet_options.note(demand.demand_id, [note])
            continue

        warning = outside_warning(case.outside_clauses(), source)
        fleet_options.note(demand.demand_id, warning)
        fleet_options.add(demand, case)
    progress.note("sharing out the devices")
    progress.close()
    return fleet_options


def _prepare(
    sheet_demand: SheetDemand, source: Source, base: Question
) -> tuple[Question, list[str]]:
    """Return the question of a demand, and notes. Raises InputError where facts are missing."""
    demand = sheet_demand.demand
    characterization = source.characterization
    if sheet_demand.hf_config is None and demand.llm_id not in characterization.llms:
        problem = f"{characterization.source} has no facts of LLM {demand.llm_id!r}"
        llm_ids = ", ".join(characterization.llms)
        fix = f"give its config.json (hf_config), or one of {llm_ids}"
        raise InputError(problem, field="llm_id", fix=fix)

    question = sheet_demand.question(base)
    check_question(question)
    question, notes = as_measured(question, characterization, has_options=False)
    llm = find_llm(question, characterization)
    if not llm.n_experts:  # the layout is that of the fleet's mixtures of experts
        question = replace(question, data_parallel=None, expert_parallel=None)
    return question, [*notes, *config_notes(question, characterization)]


def needs_of_draws(draws: Draws, slo: SLO) -> pd.DataFrame:
    """Return the replicas that draws of latencies of one LLM need, a row per draw, a column per
    GPU profile; infinite: none are enough."""
    load_per_replica = sustained(draws, slo, of_load=True).droplevel("llm_id", axis=1)
    return load_per_replica.apply(lambda served: size_replicas(slo.load, served, _SLACK))


def fleet_options(
    demand: FleetDemand, needs: pd.DataFrame, profiles: Mapping[str, GPUProfile]
) -> list[FleetOption]:
    """Return an option for each GPU profile that serves a demand in some draw.

    Args:
        demand: the demand.
        needs: replicas that it takes, a row per draw, a column per GPU profile.
        profiles: by name.
    """
    return [
        FleetOption(
            demand_id=demand.demand_id,
            gpu_profile_id=profile_id,
            gpu_id=profiles[profile_id].gpu.gpu_id,
            n_gpus=profiles[profile_id].n_gpus,
            needs=of_profile.to_numpy(float),
        )
        for profile_id, of_profile in needs.items()
        if np.isfinite(of_profile).any()
    ]
