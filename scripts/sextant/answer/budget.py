"""What a budget serves: the largest load within the limits, on each GPU profile."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sextant.answer.answer import Answer
from sextant.answer.option import Option
from sextant.answer.words import answer_source_line, chosen_words, limits_words
from sextant.ask.case import Case
from sextant.base.errors import InputError
from sextant.decide.budget import largest_factor
from sextant.decide.most_replicas import MOST_REPLICAS
from sextant.facts.gpu import HOURS_PER_MONTH
from sextant.facts.slo import METRICS, SLO
from sextant.pages.blocks import Block, Document, Headline, Note, Section, Table
from sextant.pages.words import chance, number, per_second, plural, usd_words


@dataclass(frozen=True)
class Budget:
    """What may be spent, and how sure the load has to be served."""

    usd_per_month: float
    """Of 730 hours."""
    probability: float

    def __post_init__(self) -> None:
        if not 0 < self.usd_per_month < math.inf:
            fix = "give USD for a month of 730 hours, e.g. 10000"
            problem = f"{self.usd_per_month:g} is not a budget"
            raise InputError(problem, field="--usd-per-month", fix=fix)

    def replicas(self, usd_per_hour: float) -> int:
        """Return how many replicas of a price it buys, `MOST_REPLICAS` at most."""
        usd = self.usd_per_month / HOURS_PER_MONTH
        if usd_per_hour * MOST_REPLICAS <= usd:
            return MOST_REPLICAS
        return int(usd / usd_per_hour + 1e-9)


@dataclass(frozen=True)
class BudgetOutcome:
    """The largest load that a budget serves on one GPU profile; its fields are its JSON."""

    gpu_profile_id: str
    status: str
    """`serves`; `too_slow` (no load is likely enough to be served within the limits), `too_dear`
    (it buys no replica), `does_not_fit`."""
    is_gpu_measured: bool
    replicas: int = 0
    usd_per_hour: float | None = None
    """Of these replicas; of one where the budget buys none."""
    probability_met: float | None = None
    """None without draws."""
    factor: float | None = None
    """The load over that of the traffic as asked."""
    request_rate_rps: float | None = None
    """Mean rate of the load."""
    reason: str | None = None
    """Why it serves nothing."""

    @property
    def option(self) -> Option:
        """Its replicas as an option; all None where it serves nothing."""
        if self.status != "serves":
            return Option()
        name = self.gpu_profile_id
        return Option(name, self.replicas, None, self.usd_per_hour, self.probability_met)

    def to_dict(self) -> dict[str, Any]:
        """Return its row in the JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class BudgetAnswer(Answer):
    """What `--usd-per-month` answers."""

    alternatives: Sequence[BudgetOutcome]
    """The largest load first."""
    slo: SLO
    """Its load is that of a factor of 1."""
    budget: Budget
    traffic: str
    """What arrives, in words."""
    has_traffic: bool
    """Whether the load is a factor on some traffic."""

    @property
    def best(self) -> BudgetOutcome:
        """The GPU profile with the largest load."""
        return self.alternatives[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the answer."""
        return {
            **self.shared_facts(self.slo.facts(), None, ()),
            "usd_per_month": self.budget.usd_per_month,
            "probability": self.budget.probability,
            "request_rate_rps": self.best.request_rate_rps,
            "factor": self.best.factor,
        }


class VariableLoad(NamedTuple):
    """A load that may be multiplied, on one GPU profile."""

    loads_at: Callable[[float], np.ndarray]
    """Returns the load in replicas by draw for a factor on it, the likeliest law first."""
    guess: float
    """The factor that one replica may bear: where the search starts."""


def spend_budget(
    budget: Budget,
    case: Case,
    rate_rps: float,
    loads: Mapping[str, VariableLoad],
    excluded: Mapping[str, str],
) -> list[BudgetOutcome]:
    """Return what a budget serves on each GPU profile: the largest load, then the cheapest, first.

    Args:
        budget: the budget.
        case: the LLM, and the candidates with their prices.
        rate_rps: mean rate of a load of factor 1.
        loads: by GPU profile.
        excluded: why the other GPU profiles serve nothing.

    Raises:
        InputError: the budget buys no replica of any.
    """
    prices = {name: case.gpu_profiles[name].usd_per_hour for name in loads}
    counts = {name: budget.replicas(usd) for name, usd in prices.items()}
    if prices and not any(counts.values()):
        least = math.ceil(min(prices.values()) * HOURS_PER_MONTH)
        fix = f"give {least} or more, or other --gpu-profiles"
        problem = f"{budget.usd_per_month:.10g} USD a month buy no replica"
        raise InputError(problem, field="--usd-per-month", fix=fix)

    outcomes = [
        BudgetOutcome(name, "does_not_fit", case.is_gpu_measured(name), reason=reason)
        for name, reason in excluded.items()
    ]
    for name, replicas in counts.items():
        is_measured = case.is_gpu_measured(name)
        if not replicas:
            reason = f"a replica costs {number(prices[name] * HOURS_PER_MONTH)} USD a month"
            usd = prices[name]
            outcomes.append(
                BudgetOutcome(name, "too_dear", is_measured, usd_per_hour=usd, reason=reason)
            )
            continue
        outcomes.append(_served(budget, name, replicas, loads[name], is_measured))
    outcomes = [_priced(outcome, prices, rate_rps) for outcome in outcomes]
    return sorted(outcomes, key=_by_load)


def _served(
    budget: Budget,
    profile_id: str,
    replicas: int,
    load: VariableLoad,
    is_gpu_measured: bool,
) -> BudgetOutcome:
    def draws_at(factor: float) -> np.ndarray:
        loads = load.loads_at(factor)
        return loads[1:] if len(loads) > 1 else loads

    start = replicas * load.guess
    borne = largest_factor(draws_at, replicas, budget.probability, start)
    if not borne.factor:
        reason = f"no load is within the limits with probability {budget.probability:.10g}"
        return BudgetOutcome(profile_id, "too_slow", is_gpu_measured, replicas, reason=reason)
    met = float((borne.loads <= replicas).mean()) if len(borne.loads) > 1 else None
    return BudgetOutcome(
        profile_id, "serves", is_gpu_measured, replicas, probability_met=met, factor=borne.factor
    )


def _priced(outcome: BudgetOutcome, prices: Mapping[str, float], rate_rps: float) -> BudgetOutcome:
    if outcome.status != "serves":
        return outcome
    return replace(
        outcome,
        usd_per_hour=outcome.replicas * prices[outcome.gpu_profile_id],
        request_rate_rps=(outcome.factor or 0.0) * rate_rps,
    )


def _by_load(outcome: BudgetOutcome) -> tuple[float, float, str]:
    return -(outcome.factor or 0.0), outcome.usd_per_hour or math.inf, outcome.gpu_profile_id


def budget_document(answer: BudgetAnswer) -> Document:
    """Return the answer for people (blocks) and programs (data)."""
    percentiles = [
        f"{METRICS[name]} ≤ {limit.limit_ms:g} ms at p{limit.percentile}"
        for name, limit in answer.slo.limits.items()
    ]
    header = ["Deployment", "Load", "Price", "Probability", "Why not"]
    rows = [_cells(outcome, answer.has_traffic) for outcome in answer.alternatives]
    blocks: list[Block] = [
        Headline(_headline(answer)),
        *(Note(line, "warning") for line in answer.all_warnings),
        Section("GPU profiles", [Table(header, rows, {0, 4}, has_header_in_text=False)]),
        *(Note(line) for line in answer.replica_lines),
        Note(answer_source_line(answer)),
    ]
    title = f"{answer.llm_id}: what {number(answer.budget.usd_per_month)} USD a month serve"
    asked = f"of {answer.traffic}, {', '.join(percentiles)}"
    return Document(title, blocks, answer.to_dict(), asked)


def _headline(answer: BudgetAnswer) -> str:
    budget = f"{answer.llm_id}: {number(answer.budget.usd_per_month)} USD a month (730 h)"
    wanted = f"{answer.budget.probability:.10g}"
    if not answer.has_option:
        limits = limits_words(answer.slo.limits)
        return f"{budget} serve nothing within {limits} with probability {wanted} or more"
    sure = "by the best estimate"
    if answer.chosen.probability_met is not None:
        sure = f"with probability {wanted}"
    load = _load_words(answer.best, answer.has_traffic)
    return f"{budget} serve up to {load}, {sure}: {chosen_words(answer)}"


def _load_words(outcome: BudgetOutcome, has_traffic: bool) -> str:
    rate = per_second(outcome.request_rate_rps or 0.0)
    return f"{number(outcome.factor)} times the traffic ({rate})" if has_traffic else rate


def _cells(outcome: BudgetOutcome, has_traffic: bool) -> list[str]:
    name = outcome.gpu_profile_id
    if not outcome.is_gpu_measured:
        name += " (GPU never measured)"
    if outcome.status != "serves":
        status = "ruled out" if outcome.status == "does_not_fit" else "nothing"
        return [name, status, "", "", outcome.reason or ""]
    probability = outcome.probability_met
    return [
        f"{plural(outcome.replicas, 'replica')} × {name}",
        _load_words(outcome, has_traffic),
        usd_words(outcome.usd_per_hour),
        "" if probability is None else chance(probability),
        "",
    ]
