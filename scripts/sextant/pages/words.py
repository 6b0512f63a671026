"""Numbers, shares, durations and lists in words, for pages and the terminal alike."""

import math
from collections.abc import Sequence
from decimal import Decimal

MINUTE_S = 60
HOUR_S = 3600
DAY_S = 86400
NO_BREAK = "\u00a0"
"""A space at which no line ends."""


def number(value: float | None) -> str:
    """Write a number with 3 significant digits, all digits before the point, `–` for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"


def percent(fraction: float | None) -> str:
    """Write a fraction in percent, `–` for None."""
    return "–" if fraction is None else f"{number(100.0 * fraction)} %"


def usd_words(usd_per_hour: float | None) -> str:
    """Write a price with its unit, e.g. `8.20 USD/h` (`usd_number`)."""
    return f"{usd_number(usd_per_hour)} USD/h"


def usd_number(usd_per_hour: float | None) -> str:
    """Write a price without its unit, e.g. `8.20`; cents of cents where it is that small."""
    if usd_per_hour is None:
        return number(None)
    if 0 < usd_per_hour < 0.1:
        return f"{Decimal(number(usd_per_hour)):f}"
    return f"{usd_per_hour:,.2f}"


def odds(probability: float) -> str:
    """Return a probability in words. `decide.decision` has the same bounds for options."""
    likely = {0.9: "very likely", 0.5: "more likely than not", 0.2: "less likely than not"}
    return next((words for least, words in likely.items() if probability >= least), "unlikely")


def shown_chance(probability: float) -> int:
    """Return a probability's hundredths: rounded down (0.899 is no 0.9), 100 above 0.99."""
    return 100 if probability >= 0.995 else math.floor(100 * probability + 1e-9)


def chance(probability: float) -> str:
    """Return a probability to two digits (`shown_chance`)."""
    hundredths = shown_chance(probability)
    if hundredths == 100:
        return "> 0.99"
    return f"{hundredths / 100:.2f}" if hundredths else "< 0.01"


def plural(count: int, noun: str) -> str:
    """Write a count with its noun, e.g. `1 user`, `2 users`, `3 batches`."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number(count)} {noun}{ending}"


def joined(words: Sequence[str]) -> str:
    """Join words as a sentence does."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def interval(low: float, high: float) -> str:
    """Write the ends of an interval, e.g. `0.95–1.10`, `–` where they are not known."""
    return f"{low:.2f}–{high:.2f}" if math.isfinite(low) and math.isfinite(high) else "–"


def duration_words(seconds: float) -> str:
    """Write a duration in its largest sensible unit, e.g. `58.4 minutes`."""
    if seconds == 7 * DAY_S:
        return "1 week"
    for unit_s, word in ((DAY_S, "days"), (HOUR_S, "hours"), (MINUTE_S, "minutes")):
        if seconds == unit_s:
            return f"1 {word[:-1]}"
        if seconds >= 2 * unit_s or (word == "minutes" and seconds > MINUTE_S):
            return f"{number(float(seconds / unit_s))} {word}"
    return "1 second" if seconds == 1 else f"{number(float(seconds))} seconds"


def rate_words(per_s: float) -> str:
    """Write a rate in the unit of time that leaves it above 1, hours at most."""
    for unit_s, word in ((1, "second"), (MINUTE_S, "minute")):
        if per_s * unit_s >= 1:
            return f"{number(float(per_s * unit_s))} per {word}"
    return f"{number(float(per_s * HOUR_S))} per hour"


def per_second(rate_rps: float) -> str:
    """Return e.g. `8 requests/s`."""
    shown = number(float(rate_rps))
    return f"{shown} request{'' if shown == '1' else 's'}/s"


def under_load(users: int | None, rate_rps: float | None) -> str:
    """Return the load of a replica: e.g. `with 4 users`, or `at 2 requests/s` without users."""
    if users is None:
        return f"at {per_second(rate_rps or 0.0)}"
    return f"with {plural(users, 'user')}"


def time_unit(duration_s: float, start_time: str | None) -> tuple[int, str]:
    """Return the unit in seconds that suits a duration, and the label of an axis of times."""
    unit_s = DAY_S
    word = "Days"
    n_letters = len("2023-11-01 00:00")
    if duration_s <= 4 * HOUR_S:
        unit_s = MINUTE_S
        word = "Minutes"
        n_letters = len("2023-11-01 00:00:00")
    elif duration_s <= 4 * DAY_S:
        unit_s = HOUR_S
        word = "Hours"
    start = start_time[:n_letters] if start_time else "the first request"
    return unit_s, f"{word} since {start}"
