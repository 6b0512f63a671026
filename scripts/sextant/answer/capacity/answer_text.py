"""A capacity answer as lines of text: the terminal prints all, the page takes single ones."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sextant.answer.text import chance, deployment, source_line
from sextant.facts.slo import METRICS, limits_of
from sextant.pages.wording import (
    HOUR_S,
    aligned,
    duration_words,
    listed,
    number,
    percent,
    plural,
    rate_words,
)

Answer = Mapping[str, Any]


def as_text(answer: Answer) -> str:
    """Return the whole answer as lines."""
    blocks = [[headline(answer), *answer["warnings"], demand_line(answer), slo_line(answer)]]
    rows = aligned([profile_cells(row) for row in answer["alternatives"]])
    blocks.append(["GPU profiles:", *(f"  {line}" for line in rows)])
    if answer["replicas"] is not None:
        blocks.append([f"With {deployment(answer)}:", *(f"  {line}" for line in what_if(answer))])
    blocks.append([source_line(answer)])
    return "\n\n".join("\n".join(block) for block in blocks)


def headline(answer: Answer) -> str:
    """Return the answer in one line."""
    window = windows_words(answer["slo"])
    if answer["replicas"] is None:
        wanted = f"with probability {1 - answer['risk']:.10g} or more"
        return f"{answer['llm_id']}: no GPU profile meets the SLO {window} {wanted}"
    return (
        f"{answer['llm_id']}: {deployment(answer)}; meets the SLO {window} with probability "
        f"{chance(answer['probability_met'])} (simulated)"
    )


def windows_words(slo: Answer) -> str:
    """Return e.g. `in every window of 5 minutes`."""
    if slo["window_s"] is None:
        return "over the whole time"
    return f"in every window of {duration_words(slo['window_s'])}"


def demand_line(answer: Answer) -> str:
    """Return what arrives."""
    demand = answer["demand"]
    bursts = {"1s": "second", "10s": "10 seconds", "60s": "minute"}
    most = [f"{number(demand['busiest'][key])} in the busiest {bursts[key]}" for key in bursts]
    gaps = "" if demand["gap_cv"] is None else f", CV of the gaps {number(demand['gap_cv'])}"
    return (
        f"for {demand['name']}: {plural(demand['n_requests'], 'request')} in "
        f"{duration_words(demand['duration_s'])} ({rate_words(demand['rate_rps'])}; "
        f"{listed(most)}{gaps}), "
        f"{number(demand['mean_input_tokens'])} input and "
        f"{number(demand['mean_output_tokens'])} output tokens on average"
    )


def slo_line(answer: Answer) -> str:
    """Return the limits."""
    slo = answer["slo"]
    words = [
        f"p{limit.percentile} of {METRICS[name]} ≤ {limit.limit_ms:g} ms"
        for name, limit in limits_of(slo).items()
    ]
    if slo["goodput"] is not None:
        words.append(f"{percent(slo['goodput'])} of the requests within all limits")
    words.append(f"at most {percent(slo['max_failed'])} of them refused or timed out")
    return f"so that {listed(words)}, {windows_words(slo)}"


def profile_cells(row: Answer) -> list[str]:
    """Return what is said of a GPU profile: its name, price and probability, and why."""
    name = row["gpu_profile_id"] + ("" if row["is_gpu_measured"] else " (GPU never measured)")
    if row["status"] == "meets":
        price = f"{row['usd_per_hour']:.2f} USD/h"
        return [f"{row['replicas']} × {name}", price, chance(row["probability_met"]), _why(row)]
    return [name, "ruled out" if row["status"] == "does_not_fit" else "misses", "", _why(row)]


def _why(row: Answer) -> str:
    if row["status"] == "does_not_fit":
        return row["reason"]
    if row["status"] == "refused":
        verb = "is" if row["n_refused"] == 1 else "are"
        refused = f"{plural(row['n_refused'], 'request')} {verb} too long for it, or time out"
        return f"{refused} even alone (--max-model-len, --max-failed, --timeout-s)"
    if row["status"] == "too_slow":
        if row["alone_ratio"] <= 1:
            return "too few requests alone are within all limits (--goodput)"
        limit = METRICS[row["alone_limit"]]
        return f"{limit} of requests alone is {ratio_words(row['alone_ratio'])}"
    rate = row["rate_at_slo_rps"]
    bears = "a replica bears all at once"
    if rate is not None:
        bears = f"a replica bears {number(rate)} requests/s"
    if row["status"] == "too_many":
        return f"{bears}; no number of replicas is as certain as asked"
    low, high = row["replicas_lo"], row["replicas_hi"]
    if high is None:
        return f"{bears}; {number(low)} or more replicas, and none is enough in 5% of the draws"
    return f"{bears}; 90% interval {number(low)} to {plural(high, 'replica')}"


def ratio_words(ratio: float) -> str:
    """Return e.g. `1.4 times its limit`."""
    return f"{number(ratio)} times its limit"


def what_if(answer: Answer) -> list[str]:
    """Return what would change the answer, a line each."""
    others = [row for row in answer["neighbours"] if row["replicas"] != answer["replicas"]]
    return [
        *aligned([_neighbour(row) for row in others]),
        failure_line(answer),
        growth_line(answer),
        burst_line(answer),
        schedule_line(answer),
    ]


def _neighbour(row: Answer) -> list[str]:
    price = f"{row['usd_per_hour']:.2f} USD/h"
    words = plural(row["replicas"], "replica")
    return [words, price, chance(row["probability_met"]), missed_words(row)]


def missed_words(row: Answer) -> str:
    """Return how windows go, e.g. `3 of 12 windows missed (TTFT 2.1 times its limit)`."""
    failed = ""
    if row["failed_fraction"]:
        failed = f", {percent(row['failed_fraction'])} of the requests fail"
    n_missed, every, worst = row["n_windows_missed"], number(row["n_windows"]), ""
    windows = f"{n_missed} of {every} windows" if n_missed else f"all {every} windows"
    if row["n_windows"] == 1:
        windows = "the only window"
    if not n_missed:
        return f"{windows} met{failed}"
    if row["worst_ratio"] > 1:
        worst = f" ({METRICS[row['worst_limit']]} up to {ratio_words(row['worst_ratio'])})"
    return f"{windows} missed{worst}{failed}"


def failure_line(answer: Answer) -> str:
    """Return what happens when a replica fails."""
    row = answer["failure"]
    back = duration_words(row["back_s"] - row["at_s"])
    when = moment(answer, row["at_s"])
    return f"a replica fails in the busiest minute ({when}), back after {back}: {missed_words(row)}"


def growth_line(answer: Answer) -> str:
    """Return what more traffic does."""
    row = answer["growth"]
    enough = "no number of replicas is enough"
    if row["replicas_needed"] is not None:
        needed = plural(row["replicas_needed"], "replica")
        enough = f"it takes {needed}, {row['usd_per_hour']:.2f} USD/h"
    return f"traffic × {row['factor']:g}: {missed_words(row)}; {enough}"


def burst_line(answer: Answer) -> str:
    """Return how the busiest minute goes by itself."""
    row = answer["burst"]
    limits = limits_of(answer["slo"])
    each = [
        f"p{limits[name].percentile} of {METRICS[name]} {number(value)} ms"
        for name, value in row["latencies_ms"].items()
    ]
    state = "met" if row["is_met"] else "missed"
    others = ""
    if row["n_minutes"] > 1:
        missed = row["n_minutes_missed"]
        others = f"; of all {number(row['n_minutes'])} minutes {missed} would be missed"
    return (
        f"the busiest minute ({moment(answer, row['start_s'])}, "
        f"{plural(row['n_requests'], 'request')}) by itself is {state}: {listed(each)}{others}"
    )


def schedule_line(answer: Answer) -> str:
    """Return what replicas by the hour save."""
    row = answer["schedule"]
    counts = row["replicas"]
    slot = "the hour" if row["slot_s"] == HOUR_S else duration_words(row["slot_s"])
    if len(counts) == 1:
        return f"by {slot}: the traffic is no longer than that, so nothing can be saved"
    low, high = min(counts), max(counts)
    state = "all windows met"
    if row["n_windows_missed"]:
        state = f"{plural(row['n_windows_missed'], 'window')} missed"
    saved = f"saves {percent(row['saved'])} ({row['usd_per_hour_saved']:.2f} USD/h on average)"
    if row["saved"] <= 0:
        saved = "saves nothing: starting takes as much"
    return (
        f"by {slot}: {number(low)} to {plural(high, 'replica')}, "
        f"{number(row['replica_hours'])} replica hours instead of "
        f"{number(row['fixed_replica_hours'])}, with {duration_words(row['startup_s'])} to start "
        f"one: {saved}; {state}"
    )


def moment(answer: Answer, after_s: float) -> str:
    """Return a time of the traffic by its clock, or from its start on."""
    start = answer["demand"]["start_time"]
    if start is not None:
        now = datetime.fromisoformat(start) + timedelta(seconds=after_s)
        return f"{now:%Y-%m-%d %H:%M:%S}"
    minutes, seconds = divmod(round(after_s), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} after its start"
