"""The phrases that answers share: a deployment, its chance and cost, the SLO, the source."""

import math
from collections.abc import Mapping
from typing import Any

from sextant.facts.prices import PriceOrigin, origin_line
from sextant.facts.slo import METRICS, limits_of
from sextant.pages.wording import number, plural

Answer = Mapping[str, Any]


def deployment(option: Answer) -> str:
    """Return e.g. `4 replicas × 1xA100-40GB = 16.39 USD/h`."""
    price = f"{option['usd_per_hour']:.2f} USD/h"
    return f"{plural(option['replicas'], 'replica')} × {option['gpu_profile_id']} = {price}"


def chance(probability: float) -> str:
    """Return a probability to two digits, rounded down; draws never make one certain.

    Rounded up, 0.899 would look like enough for a risk of 0.1.
    """
    if probability >= 0.995:
        return "> 0.99"
    hundredths = math.floor(100 * probability + 1e-9)
    return f"{hundredths / 100:.2f}" if hundredths else "< 0.01"


def slo_line(slo: Answer) -> str:
    """Return the load and the latency limits in one line."""
    limits = limits_of(slo)
    percentiles = {limit.percentile for limit in limits.values()}
    words = [
        f"{METRICS[name]} ≤ {limit.limit_ms:g} ms"
        + (f" at p{limit.percentile}" if len(percentiles) > 1 else "")
        for name, limit in limits.items()
    ]
    shared = f" at p{min(percentiles)}" if len(percentiles) == 1 else ""
    return f"for {load_words(slo)}, {', '.join(words)}{shared}"


def load_words(slo: Answer) -> str:
    """Return e.g. `200 users` or `8 requests/s`."""
    if slo.get("users") is not None:
        return plural(slo["users"], "user")
    return f"{number(slo['request_rate_rps'])} requests/s"


def limits_words(answer: Answer) -> str:
    """Return `the limit`, `both limits` or `all limits`."""
    return {1: "the limit", 2: "both limits"}.get(len(limits_of(answer["slo"])), "all limits")


def source_line(answer: Answer) -> str:
    """Return what the answer rests on."""
    known = answer["characterization"]
    where = "ships with Sextant" if known["origin"] == "shipped" else known["origin"]
    text = (
        f"From {known['source']} ({where}): {plural(known['n_llms'], 'LLM')} × "
        f"{plural(known['n_gpu_profiles'], 'GPU profile')}, {plural(known['n_points'], 'point')}; "
        f"{_requests(known)}."
    )
    if answer.get("serving") is not None:
        text += f" Asked: {_asked(answer['serving'])}."
    if answer.get("execution") is not None:
        text += f" {answer['llm_id']} is taken to be executed as {answer['execution']}."
    data = "; ".join(known["attributions"])
    priced = None
    if answer.get("prices"):
        priced = origin_line(PriceOrigin(**each) for each in answer["prices"])
    parts = [text, known["note"], f"Data: {data}." if data else None, priced]
    return " ".join(filter(None, parts))


def _requests(known: Answer) -> str:
    sides = [
        f"{known[f'mean_{side}_tokens']:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
        for side, (low, high) in known["lengths_tokens"].items()
    ]
    return f"requests of {sides[0]} input and {sides[1]} output tokens on average"


def _asked(serving: Answer) -> str:
    """Return the requests and servers that the answer is for."""
    words = [
        f"{serving['input_tokens']:.0f} input and {serving['output_tokens']:.0f} output tokens"
    ]
    if serving["prefix_hit_rate"]:
        words.append(f"{serving['prefix_hit_rate']:.0%} of the input cached")
    names = {"engine": "{}", "precision": "{} weights", "kv_precision": "{} KV cache"}
    words += [text.format(serving[name]) for name, text in names.items() if serving[name]]
    return ", ".join(words)


def cost_line(answer: Answer) -> str:
    """Return what a million tokens cost, and how full the replicas are."""
    cost = answer["cost"]
    use = "" if cost["utilisation"] is None else f" at {cost['utilisation']:.0%} utilisation"
    by = "the time of prefill and decode" if cost["split"] == "time" else "tokens"
    return (
        f"{cost['usd_per_million_input_tokens']:.3g} USD per million input tokens, "
        f"{cost['usd_per_million_output_tokens']:.3g} per million output tokens (split by {by}), "
        f"at {number(cost['requests_per_s'])} requests/s{use}."
    )
