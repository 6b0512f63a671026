"""What a deployment costs, its room to the limits and the loss of a replica, in words.

Of `sextant.decide.outlook`, for the terminal and the report.
"""

from sextant.answer.phrases import Answer
from sextant.facts.slo import METRICS
from sextant.pages.wording import number, percent, plural


def price_words(about: Answer) -> str:
    """Return what the deployment costs an hour, a month and per token."""
    words = (
        f"{about['usd_per_hour']:,.2f} USD/h, {number(about['usd_per_month'])} USD a month (730 h)"
    )
    if about["usd_per_million_tokens"] is None:
        return words
    return (
        f"{words}, {number(about['usd_per_million_tokens'])} USD per million tokens, input or "
        f"output, at {number(about['requests_per_s'])} requests/s"
    )


def load_words(load: float, slo: Answer) -> str:
    """Return e.g. `200 users` or `8 requests/s`."""
    if slo.get("users") is not None:
        return plural(int(load), "user")
    return f"{number(float(load))} requests/s"


def limit_words(row: Answer) -> str:
    """Return a latency at its load, its 90% interval in parentheses, and its limit."""
    low, high = row["lo_ms"], row["hi_ms"]
    between = "" if low is None and high is None else f" ({_end(low)} to {_end(high)})"
    return (
        f"{METRICS[row['metric']]} {number(row['latency_ms'])} ms{between}, limit "
        f"{number(row['limit_ms'])} ms at p{row['percentile']}"
    )


def _end(value: float | None) -> str:
    return "unknown" if value is None else number(value)


def room_words(row: Answer, slo: Answer) -> str:
    """Return the room to a limit: in percent of it, and in load."""
    room, more = row["headroom"], row["load"] - _load(slo)
    state = f"{percent(room)} of room" if room >= 0 else f"{percent(-room)} above it"
    least = "at least " if row["is_most_tried"] else "up to "
    beyond = ", the most that was tried" if row["is_most_tried"] else ""
    by = "as asked"
    if round(more, 9):
        by = f"{number(abs(float(more)))} {'more' if more > 0 else 'fewer'} than asked"
    return f"{state}; {least}{load_words(row['load'], slo)}{beyond} ({by})"


def loss_words(about: Answer, slo: Answer) -> str:
    """Return what happens when one replica is lost."""
    left = about["without_one"]
    if left is None:
        return "nothing serves: it is the only replica"
    verb = "carries" if left["replicas"] == 1 else "carry"
    rest = f"the {number(left['replicas'])} left {verb}"
    carried = load_words(left["load"], slo)
    if left["is_kept"]:
        return f"the SLO is still kept: {rest} {carried}"
    share = percent(left["load"] / _load(slo))
    return f"the SLO is not kept: {rest} {carried} within the limits, {share} of the load"


def next_words(option: Answer) -> str:
    """Return the next best option, and the price at which it would win."""
    name = f"{plural(option['replicas'], 'replica')} × {option['gpu_profile_id']}"
    if not option["extra_usd_per_hour"]:
        return f"{name} at the same price"
    now, below = option["usd_per_hour"] / option["replicas"], option["wins_below_usd_per_hour"]
    return (
        f"{name}, {number(option['extra_usd_per_hour'])} USD/h more; wins below {number(below)} "
        f"USD/h a replica (now {number(now)}, {percent(1 - below / now)} less)"
    )


OPEN_WORDS = "so few requests that they leave an upper end open: it may be higher"
"""Of a probability, where `is_open`."""


def outlook_lines(about: Answer, slo: Answer) -> list[str]:
    """Return it as lines for a terminal."""
    limits = [f"  {limit_words(row)}: {room_words(row, slo)}" for row in about["limits"]]
    return [
        f"Costs {price_words(about)}.",
        f"A replica gets {plural(about['users_per_replica'], 'user')}{_measured_at(about)}; 90% "
        "intervals in parentheses:",
        *limits,
        f"If one replica is lost, {loss_words(about, slo)}.",
        *([f"The probability rests on {OPEN_WORDS}."] if about["is_open"] else []),
    ]


def month_line(about: Answer, slo: Answer) -> str:
    """Return what a month costs, and what the loss of a replica means."""
    return (
        f"A month (730 h) costs {number(about['usd_per_month'])} USD. If one replica is lost, "
        f"{loss_words(about, slo)}."
    )


def _measured_at(about: Answer) -> str:
    same = about["level_users"] == about["users_per_replica"]
    return "" if same else f" (judged at {number(about['level_users'])}, the next load tried)"


def _load(slo: Answer) -> float:
    return slo["request_rate_rps"] if slo.get("users") is None else slo["users"]
