"""Words that answers share: a deployment, its price, its limits and their room, its sources."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sextant.answer.answer import Answer
from sextant.answer.option import Option
from sextant.ask.serving import Serving
from sextant.ask.source import Source
from sextant.decide.headroom import Headroom, LimitRoom, NextBest
from sextant.facts.gpu import origin_line
from sextant.facts.slo import METRICS, SLO, Limit
from sextant.pages.words import (
    chance,
    joined,
    number,
    per_second,
    percent,
    plural,
    usd_number,
    usd_words,
)

OPEN_WORDS = "so few requests that they leave an upper end open: it may be higher"
"""Of a probability, where `Headroom.is_open`."""
_PRICE_RULE = (
    "Yours come first, then the provider that --prices names, then the cheapest that ships."
)


def deployment_words(option: Any) -> str:
    """Return e.g. `4 replicas × 1xA100-40GB = 16.39 USD/h`."""
    price = usd_words(option.usd_per_hour)
    return f"{plural(option.replicas, 'replica')} × {option.gpu_profile_id} = {price}"


def chosen_words(answer: Answer) -> str:
    """Return the deployment that an answer recommends, and whether its GPU was never measured."""
    name = answer.chosen.gpu_profile_id
    is_measured = all(
        alternative.is_gpu_measured
        for alternative in answer.alternatives
        if alternative.gpu_profile_id == name
    )
    return deployment_words(answer.chosen) + ("" if is_measured else " (GPU never measured)")


def chance_words(option: Option) -> str:
    """Return a deployment with its probability."""
    return f"{deployment_words(option)}, probability {chance(option.probability_met or 0.0)}"


def slo_line(slo: SLO) -> str:
    """Return the load and the latency limits in one line."""
    percentiles = {limit.percentile for limit in slo.limits.values()}
    shared = f" at p{min(percentiles)}" if len(percentiles) == 1 else ""
    words = [
        f"{METRICS[name]} ≤ {limit.limit_ms:g} ms{'' if shared else f' at p{limit.percentile}'}"
        for name, limit in slo.limits.items()
    ]
    return f"for {load_words(slo)}, {', '.join(words)}{shared}"


def load_words(slo: SLO, load: float | None = None) -> str:
    """Return e.g. `200 users` or `8 requests/s`: the asked load, or another one."""
    load = slo.load if load is None else load
    return per_second(load) if slo.users is None else plural(int(load), "user")


def limits_words(limits: Mapping[str, Limit], one: str = "the limit") -> str:
    """Return `the limit`, or another name of `one`, `both limits` or `all limits`."""
    return {1: one, 2: "both limits"}.get(len(limits), "all limits")


def moment_words(start: datetime | None, after_s: float) -> str:
    """Return a time of a trace as date and time, or as the time after its start."""
    if start is not None:
        return f"{start + timedelta(seconds=after_s):%Y-%m-%d %H:%M:%S}"
    minutes, seconds = divmod(round(after_s), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} after its start"


def answer_source_line(answer: Answer, execution: str | None = None) -> str:
    """Return what an answer rests on: measurements, what was asked of them, and prices.

    Args:
        answer: the answer.
        execution: how its LLM is taken to be executed; None: not said.
    """
    text = source_words(answer.source)
    if answer.serving is not None:
        text += serving_words(answer.serving)
    if execution is not None:
        text += f" {answer.llm_id} is taken to be executed as {execution}."
    priced = origin_line(answer.price_origins) if answer.price_origins else None
    profile = answer.chosen_profile
    if priced is not None and profile is not None and profile.price_source is not None:
        when = f", {profile.price_as_of}" if profile.price_as_of else ""
        priced = f"Price of the answer: {profile.price_source}{when}. {priced} {_PRICE_RULE}"
    return " ".join(filter(None, [text, *source_notes(answer.source), priced]))


def source_words(source: Source) -> str:
    """Return which measurements there are."""
    where = "ships with Sextant" if source.origin == "shipped" else source.origin
    sides = [
        f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
        for low, high in source.length_ranges
    ]
    n_points = len(source.characterization.points)
    return (
        f"From {source.characterization.source} ({where}): {plural(source.n_llms, 'LLM')} × "
        f"{plural(source.n_gpu_profiles, 'GPU profile')}, {plural(n_points, 'point')}; "
        f"requests of {sides[0]} input and {sides[1]} output tokens on average."
    )


def source_notes(source: Source) -> list[str | None]:
    """Return what the source says of itself, and whose data it is; of many, where that stands."""
    attributions = "; ".join(source.attributions)
    if source.label != source.characterization.source:
        licences = {part.licence for part in source.characterization.descriptions}
        return [source.note, f"Data under {joined(sorted(licences))}; the JSON says whose it is."]
    return [source.note, f"Data: {attributions}." if attributions else None]


def serving_words(serving: Serving) -> str:
    """Return how the LLM was asked to be served, as a sentence after others."""
    means = [length.mean for length in serving.requests]
    words = [f"{means[0]:.0f} input and {means[1]:.0f} output tokens"]
    if serving.prefix_hit_rate:
        words.append(f"{serving.prefix_hit_rate:.0%} of the input cached")
    if serving.engine:
        words.append(serving.engine + " without CUDA graphs" * serving.enforce_eager)
    if serving.precision:
        words.append(f"{serving.precision} weights")
    if serving.kv_precision:
        words.append(f"{serving.kv_precision} KV cache")
    layout = serving.facts()
    what = {"data_parallel": "copies of attention", "expert_parallel": "parts of the experts"}
    for name, noun in what.items():
        if count := layout[name]:
            many = "on every GPU" if count == "all" else "a replica"
            words.append(f"{noun} {many}" if count == "all" else f"{count} {noun} {many}")
    if serving.speculative and serving.draft_tokens:
        drafts = plural(serving.draft_tokens, "draft token")
        words.append(f"speculation by {serving.speculative} with {drafts}")
    return f" Asked: {', '.join(words)}."


def price_words(headroom: Headroom) -> str:
    """Return what the deployment costs an hour, a month and per token."""
    month = f"{number(headroom.usd_per_month)} USD a month (730 h)"
    words = f"{usd_words(headroom.usd_per_hour)}, {month}"
    per_token = headroom.usd_per_million_tokens
    if per_token is None:
        return words
    rate = per_second(headroom.requests_per_s or 0.0)
    return f"{words}, {number(per_token)} USD per million tokens, input or output, at {rate}"


def limit_words(room: LimitRoom) -> str:
    """Return a latency at its load, its 90% interval in parentheses, and its limit."""
    ends = [room.lo_ms, room.hi_ms]
    low, high = ("unknown" if end is None else number(end) for end in ends)
    between = "" if ends == [None, None] else f" ({low} to {high})"
    return (
        f"{METRICS[room.metric]} {number(room.latency_ms)} ms{between}, limit "
        f"{number(room.limit_ms)} ms at p{room.percentile}"
    )


def room_words(room: LimitRoom, slo: SLO) -> str:
    """Return the room to a limit: in percent of it, and in load."""
    share = room.headroom or 0.0
    more = room.load - slo.load
    state = f"{percent(share)} below it" if share >= 0 else f"{percent(-share)} above it"
    least = "at least " if room.is_most_tried else "up to "
    beyond = ""
    if room.is_most_tried:
        most = plural(room.most_users_tried or 0, "user")
        beyond = f", as no more than {most} a replica were tried"
    beside = "as asked"
    if round(more, 9):
        beside = f"{number(abs(float(more)))} {'more' if more > 0 else 'fewer'} than asked"
    return f"{state}; {least}{load_words(slo, room.load)}{beyond} ({beside})"


def loss_words(headroom: Headroom, slo: SLO) -> str:
    """Return what happens when one replica is lost."""
    left = headroom.without_one
    if left is None:
        return "nothing serves: it is the only replica"
    s = "s" * (left.replicas == 1)
    rest = f"the {number(left.replicas)} left"
    if left.probability_met is not None:
        return f"{rest} keep{s} the SLO with probability {chance(left.probability_met)}"
    rest = f"{rest} {'carries' if s else 'carry'}"
    carried = load_words(slo, left.load)
    if left.is_kept:
        return f"the SLO is still kept: {rest} {carried}"
    share = percent(left.load / slo.load)
    return f"the SLO is not kept: {rest} {carried} within the limits, {share} of the load"


def next_words(option: NextBest) -> str:
    """Return the next best option, and the price at which it would win."""
    name = f"{plural(option.replicas, 'replica')} × {option.gpu_profile_id}"
    if not option.extra_usd_per_hour:
        return f"{name} at the same price"
    now = option.usd_per_hour / option.replicas
    below = option.wins_below_usd_per_hour
    return (
        f"{name}, {usd_words(option.extra_usd_per_hour)} more; wins below {usd_words(below)} "
        f"a replica (now {usd_number(now)}, {percent(1 - below / now)} less)"
    )


def headroom_lines(headroom: Headroom, slo: SLO) -> list[str]:
    """Return the price, the room to each limit, and the loss of a replica."""
    level = ""
    if headroom.level_users != headroom.users_per_replica:
        judged_at = f"judged at {number(headroom.level_users)} users"
        level = f" ({judged_at}, the nearest load above that was tried)"
    if any(room.lo_ms is not None for room in headroom.limits):
        level += "; 90% intervals in parentheses"
    return [
        f"Costs {price_words(headroom)}.",
        f"A replica gets {plural(headroom.users_per_replica, 'user')}{level}:",
        *(f"  {limit_words(room)}: {room_words(room, slo)}" for room in headroom.limits),
        f"If one replica is lost, {loss_words(headroom, slo)}.",
        *([f"The probability rests on {OPEN_WORDS}."] if headroom.is_open else []),
    ]
