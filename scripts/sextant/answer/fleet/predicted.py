"""The options of all demands by a predictor: one fit for alike limits, joint draws for each LLM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sextant.answer.basis import estimates, outside_basis, warning
from sextant.answer.fleet.problem import Demand, Option, Pool
from sextant.answer.fleet.sheets import Wanted
from sextant.answer.predicted import Fitted, Forecast, fit_to, forecast_of
from sextant.answer.question import Question, check, make_predictor, named_llm
from sextant.answer.serving import as_measured
from sextant.answer.source import Source, find_source
from sextant.answer.subject import Subject, subject_of
from sextant.base.errors import InputError
from sextant.decide.decision import sustained
from sextant.decide.recommend import load_served
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.mig import is_slice
from sextant.facts.slo import SLO
from sextant.points.characterizations.points import LENGTHS
from sextant.predict.draws import Draws
from sextant.predict.protocols import JointPredictor

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
