"""What certainty costs, and the unknown that makes it dear, on made-up draws."""

from dataclasses import replace

import numpy as np
import pytest

from sextant.answer.certainty import (
    Cause,
    Certainty,
    Unknown,
    certainty_words,
    find_cause,
    list_frontier,
    price_certainty,
    price_sections,
    unknowns_of_laws,
)
from sextant.answer.option import Option
from sextant.decide.latency_surface import MeanRequest, ReplicaLaws
from sextant.simulate.server import Scheduler, StepLaw

LAW = StepLaw(8.0, 4.0, 0.05, 1e-5, 0.02, 1e-6, request_ms=3.0)
REQUEST = MeanRequest(1000.0, 200.0)
RPS = 2.0
CAUSE = Cause("step", 0.8, "1xH100-80GB", "itl", 1)


def option(usd_per_hour: float, probability: float, name: str = "1xH100-80GB") -> Option:
    return Option(name, round(usd_per_hour), None, usd_per_hour, probability)


def drawn_laws(**factors: np.ndarray) -> ReplicaLaws:
    """Laws in whose draws only these terms differ from the likeliest."""
    (n_draws,) = {len(factor) for factor in factors.values()}
    laws = [LAW]
    for draw in range(n_draws):
        terms = {name: getattr(LAW, name) * factor[draw] for name, factor in factors.items()}
        laws.append(replace(LAW, **terms))
    return ReplicaLaws(Scheduler(200_000), np.stack([law.array() for law in laws]))


@pytest.mark.parametrize(
    ("terms", "unknown", "metric"),
    [
        (("floor_ms", "dense_ms"), "step", "itl"),
        (("sequence_ms", "kv_token_ms"), "request", "itl"),
        (("prefill_token_ms", "prefill_pair_ms"), "prompt", "ttft"),
        (("request_ms",), "entry", "ttft"),
    ],
)
def test_the_only_unknown_of_a_law_is_the_cause(terms, unknown: str, metric: str) -> None:
    factor = np.random.default_rng(0).lognormal(0, 0.3, 200)
    laws = drawn_laws(**dict.fromkeys(terms, factor))
    cause = find_cause("1xH100-80GB", 3 * factor**0.7, unknowns_of_laws(laws, REQUEST, RPS))
    assert cause is not None
    assert (cause.unknown, cause.metric, cause.gpu_profile_id) == (unknown, metric, "1xH100-80GB")
    assert cause.explained_share > 0.99


def test_of_two_unknowns_the_one_that_moves_the_replicas_is_the_cause() -> None:
    rng = np.random.default_rng(1)
    step, prompt = rng.lognormal(0, 0.3, (2, 400))
    laws = drawn_laws(floor_ms=step, dense_ms=step, prefill_token_ms=prompt, prefill_pair_ms=prompt)
    loads = 3 * prompt * step**0.2
    cause = find_cause("p", loads, unknowns_of_laws(laws, REQUEST, RPS))
    assert cause is not None and cause.unknown == "prompt"
    assert 0.85 < cause.explained_share < 0.99


def test_what_each_request_adds_is_measured_at_the_load_of_a_replica() -> None:
    laws = drawn_laws(sequence_ms=np.array([0.5, 1.0, 2.0]))
    users = {
        rate: {unknown.name: unknown.users for unknown in unknowns_of_laws(laws, REQUEST, rate)}
        for rate in (0.01, 2.0, 1e6)
    }
    assert users[0.01] == {"step": 1, "request": 1, "prompt": 1, "entry": 1}
    # Little's law: 2/s × about 3 s; beyond saturation what the memory holds.
    assert 4 < users[2.0]["request"] < 12
    assert users[1e6]["request"] == round(laws.most_decoding(REQUEST))


def test_draws_in_which_no_number_is_enough_count_as_the_worst() -> None:
    values = np.array([1.0, 1.1, 1.2, 5.0, 5.1])
    loads = np.array([1.0, 1.1, 1.2, np.inf, np.inf])
    cause = find_cause("p", loads, [Unknown("step", values, "itl", 1)])
    assert cause is not None and cause.explained_share > 0.95
    assert find_cause("p", np.full(5, np.inf), [Unknown("step", values, "itl", 1)]) is None


def test_draws_that_agree_have_no_cause() -> None:
    unknowns = [Unknown("step", np.array([1.0, 2.0]), "itl", 1)]
    assert find_cause("p", np.array([3.0, 3.0]), unknowns) is None
    same = [Unknown("step", np.ones(2), "itl", 1), Unknown("prompt", np.zeros(2), "ttft", 1)]
    assert find_cause("p", np.array([1.0, 3.0]), same) is None


def test_the_price_of_certainty_is_that_of_the_cheapest_options() -> None:
    options = [option(30.4, 0.93), option(19, 0.6), option(25, 0.58), option(10, 0.1)]
    frontier = list_frontier(options)
    assert frontier == [options[1], options[0]]
    asked = []
    certainty = price_certainty(frontier, lambda fair: asked.append(fair) or CAUSE)
    assert certainty == Certainty(options[1], options[0], CAUSE) and asked == [options[1]]
    assert certainty_words(certainty) == (
        "Certainty: probability 0.9 costs 1.6 times what 0.5 does (30.40 and 19.00 USD/h). Most of "
        "the doubt on 1xH100-80GB is the time of a step, which explains 80% of the differences "
        "between draws: measure ITL there with 1 user (--probe)."
    )
    assert certainty.to_dict() == {
        "fair": options[1]._asdict(),
        "safe": options[0]._asdict(),
        "factor": pytest.approx(1.6),
        "cause": CAUSE._asdict(),
    }


def test_where_the_cheapest_option_is_sure_certainty_costs_nothing() -> None:
    certainty = price_certainty([option(19, 0.95)], lambda fair: pytest.fail("not asked for"))
    assert certainty is not None and certainty.factor == 1
    assert certainty_words(certainty) == (
        "Certainty: probability 0.9 costs no more than 0.5 does (19.00 USD/h)."
    )


def test_where_nothing_is_sure_that_is_said() -> None:
    certainty = price_certainty([option(19, 0.6)], lambda fair: None)
    assert certainty is not None and certainty.to_dict()["safe"] is None
    assert certainty_words(certainty) == (
        "Certainty: no option reaches probability 0.9; 0.5 costs 19.00 USD/h."
    )
    assert price_certainty([option(19, 0.4)], lambda fair: CAUSE) is None
    assert price_sections([], Option(), None) == []
