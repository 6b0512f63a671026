"""What certainty costs: prices by probability, and the unknown that makes certainty dear."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sextant.answer.option import Option
from sextant.decide.decision import FAIR, LISTED, SAFE
from sextant.decide.latency_surface import MeanRequest, ReplicaLaws
from sextant.facts.answer_times import requests_in_flight
from sextant.facts.slo import METRICS
from sextant.law.means import open_loop
from sextant.pages.blocks import Block, Note, Section, Table
from sextant.pages.words import chance, plural, shown_chance, usd_number, usd_words
from sextant.simulate.server import StepLaw

OPTION_HEADER = ("Price", "Probability", "Option")
N_OPTIONS = 6
"""Options that are listed in text."""
_BATCH = 32
"""Requests that share a step where the time that each of them adds is read."""
_UNKNOWNS = {
    "step": "the time of a step",
    "request": "what each further request adds to a step",
    "prompt": "the time of a prompt",
    "entry": "the time before a request reaches the scheduler",
    "first_token": "the time to the first token",
    "gap": "the time between tokens",
}


class Unknown(NamedTuple):
    """A quantity that the draws do not agree on, and how to measure it."""

    name: str  #: A key of `_UNKNOWNS`.
    values: np.ndarray  #: Times by draw, (draws,).
    metric: str  #: The latency whose measurement tells it.
    users: int  #: Users of a replica at which it is measured.


class Cause(NamedTuple):
    """The unknown that most of the differences between draws come from; its fields are its JSON."""

    unknown: str
    explained_share: float
    """Part of the variance of the logarithm of the needed replicas that goes with it."""
    gpu_profile_id: str
    metric: str
    """The latency to measure there."""
    users: int
    """Users of a replica at which it is measured."""


class Certainty(NamedTuple):
    """The cheapest options of two probabilities."""

    fair: Option
    """Of probability `FAIR` or more."""
    safe: Option
    """Of probability `SAFE` or more; all None where there is none."""
    cause: Cause | None
    """Why the safe one is dearer; None: it is not, or all draws agree."""

    @property
    def factor(self) -> float | None:
        """Price of the safe option over that of the fair one; None: nothing is safe, or free."""
        if self.safe.usd_per_hour is None or not self.fair.usd_per_hour:
            return None
        return self.safe.usd_per_hour / self.fair.usd_per_hour

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        return {
            "fair": self.fair._asdict(),
            "safe": self.safe._asdict() if self.safe.gpu_profile_id else None,
            "factor": self.factor,
            "cause": self.cause and self.cause._asdict(),
        }


def list_frontier(options: Iterable[Option], risk: float | None = None) -> list[Option]:
    """Return the options that no cheaper one matches in probability as shown, cheapest first.

    Options of less than `LISTED`, or than the risk allows, are left out. Of equal ones the first
    counts.
    """
    least = LISTED if risk is None else min(LISTED, 1 - risk)
    frontier: list[Option] = []
    highest_shown = -1
    for option in sorted(options, key=_price_and_doubt):
        probability = option.probability_met or 0.0
        if probability >= least and shown_chance(probability) > highest_shown:
            frontier.append(option)
            highest_shown = shown_chance(probability)
    return frontier


def _price_and_doubt(option: Option) -> tuple[float, float]:
    return option.usd_per_hour or 0.0, -(option.probability_met or 0.0)


def price_certainty(
    frontier: Sequence[Option], cause_of: Callable[[Option], Cause | None]
) -> Certainty | None:
    """Return what certainty costs; None where no option has a probability of `FAIR`.

    Args:
        frontier: options, cheapest first (`list_frontier`).
        cause_of: returns why an option is not surer (`find_cause`).
    """
    fair = _cheapest(frontier, FAIR)
    safe = _cheapest(frontier, SAFE)
    if fair.usd_per_hour is None:
        return None
    is_dearer = safe.usd_per_hour is None or safe.usd_per_hour > fair.usd_per_hour
    return Certainty(fair, safe, cause_of(fair) if is_dearer else None)


def _cheapest(frontier: Sequence[Option], probability: float) -> Option:
    sure = (option for option in frontier if (option.probability_met or 0.0) >= probability)
    return next(sure, Option())


def find_cause(gpu_profile_id: str, loads: np.ndarray, unknowns: Sequence[Unknown]) -> Cause | None:
    """Return the unknown that explains most of what a load takes in replicas, draw by draw.

    It is that of the largest squared correlation of logarithms. Unknowns that move together share
    what they explain, so the parts of several do not add up.

    Args:
        gpu_profile_id: the GPU profile of the replicas.
        loads: replicas that bear just so much, (draws,). Infinite ones count as twice the most.
        unknowns: of the same draws.
    """
    is_finite = np.isfinite(loads)
    if not is_finite.any():
        return None
    log_loads = np.log(np.where(is_finite, loads, 2 * loads[is_finite].max()))
    if log_loads.std() < 1e-9:
        return None
    causes = []
    for unknown in unknowns:
        with np.errstate(divide="ignore"):
            logs = np.log(unknown.values)
        if np.isfinite(logs).all() and logs.std() > 1e-9:
            share = float(np.corrcoef(log_loads, logs)[0, 1] ** 2)
            causes.append(Cause(unknown.name, share, gpu_profile_id, unknown.metric, unknown.users))
    return max(causes, key=lambda cause: cause.explained_share, default=None)


def unknowns_of_laws(laws: ReplicaLaws, mean: MeanRequest, replica_rps: float) -> list[Unknown]:
    """Return what draws of the law of a step do not agree on.

    Args:
        laws: the likeliest and the draws.
        mean: the mean request.
        replica_rps: requests a second that a replica gets.
    """
    law = StepLaw(*laws.terms[1:].T)
    inputs, outputs, _ = mean
    context = inputs + outputs / 2
    step_ms = law.step_ms(0, 1, context, 0)
    full_step_ms = law.step_ms(0, _BATCH, _BATCH * context, 0)
    prompt_ms = np.asarray(law.prefill_token_ms * inputs + law.prefill_pair_ms * inputs**2 / 2)
    users = _users_at(laws, mean, replica_rps)
    return [
        Unknown("step", step_ms, "itl", 1),
        Unknown("request", (full_step_ms - step_ms) / (_BATCH - 1), "itl", users),
        Unknown("prompt", prompt_ms + law.prompt_step_ms, "ttft", 1),
        Unknown("entry", np.asarray(law.request_ms), "ttft", 1),
    ]


def _users_at(laws: ReplicaLaws, mean: MeanRequest, replica_rps: float) -> int:
    """Return the requests in flight at a replica, by the likeliest law; the most beyond it."""
    limits = mean.limits(laws.scheduler)
    means = open_loop(laws.law(0), limits, mean.load(), np.array([[replica_rps]]))
    users = requests_in_flight(replica_rps, means.e2e_ms[0, 0])
    return max(round(users if np.isfinite(users) else laws.most_decoding(mean)), 1)


def option_cells(option: Option) -> list[str]:
    """Return the price, the probability and the replicas of an option (`OPTION_HEADER`)."""
    plan = f"{option.replicas} × {option.gpu_profile_id}"
    if option.users_per_replica is not None:
        plan += f", {plural(option.users_per_replica, 'user')} each"
    return [usd_words(option.usd_per_hour), chance(option.probability_met or 0.0), plan]


def options_table(options: Sequence[Option]) -> Table:
    """Return a row per option."""
    return Table(
        OPTION_HEADER,
        [*map(option_cells, options)],
        {0, 1, 2},
        has_header_in_text=False,
        n_rows_in_text=N_OPTIONS,
    )


def price_sections(
    frontier: Sequence[Option], chosen: Option, certainty: Certainty | None
) -> list[Section]:
    """Return the options by price, and what certainty costs; nothing without options.

    In text the cheapest options are listed, or those up to the one beyond the answer.
    """
    if not frontier:
        return []
    deployments = [(option.gpu_profile_id, option.replicas) for option in frontier]
    deployment = chosen.gpu_profile_id, chosen.replicas
    first = 0
    if deployment in deployments:
        first = max(deployments.index(deployment) + 2 - N_OPTIONS, 0)
    blocks: list[Block] = [options_table(frontier[first:])]
    if certainty is not None:
        blocks.append(Note(certainty_words(certainty)))
    return [Section("Price against probability", blocks)]


def certainty_words(certainty: Certainty) -> str:
    """Return what certainty costs, and which measurement would make it cheaper."""
    fair = usd_words(certainty.fair.usd_per_hour)
    if certainty.safe.usd_per_hour is None:
        cost = f"no option reaches probability {SAFE:g}; {FAIR:g} costs {fair}"
    elif certainty.safe.usd_per_hour <= (certainty.fair.usd_per_hour or 0.0):
        cost = f"probability {SAFE:g} costs no more than {FAIR:g} does ({fair})"
    else:
        prices = f"{usd_number(certainty.safe.usd_per_hour)} and {fair}"
        times = "" if certainty.factor is None else f"{certainty.factor:.2g} times what"
        cost = f"probability {SAFE:g} costs {times} {FAIR:g} does ({prices})"
    text = f"Certainty: {cost}."
    cause = certainty.cause
    if cause is None:
        return text
    return (
        f"{text} Most of the doubt on {cause.gpu_profile_id} is {_UNKNOWNS[cause.unknown]}, which "
        f"explains {cause.explained_share:.0%} of the differences between draws: measure "
        f"{METRICS[cause.metric]} there with {plural(cause.users, 'user')} (--probe)."
    )
