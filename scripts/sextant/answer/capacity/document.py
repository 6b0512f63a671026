"""A capacity answer for people: blocks for text and page, and the phrases they are made of."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from sextant.answer.answer import beaten_notes, deployment, source_line, split_beaten
from sextant.decide.sizing import MOST_REPLICAS
from sextant.facts.slo import METRICS, limits_of
from sextant.pages.blocks import Block, Chart, Document, Facts, Headline, Note, Section, Table
from sextant.pages.wording import (
    HOUR_S,
    chance,
    duration_words,
    listed,
    number,
    per_second,
    percent,
    plural,
    rate_words,
    time_unit,
)

Answer = Mapping[str, Any]
_RATE_NOTE = (
    "A replica's rate: the mean rate of such traffic, gaps and windows stretched alike, at which "
    "as many replicas as the likeliest law needs just meet the SLO, over their number. The "
    "probability is over draws of the law of a step and of the traffic."
)


def capacity_document(answer: Answer, origin: Mapping[str, Any] | None = None) -> Document:
    """Return an answer of `answer_capacity` for people (blocks) and programs (data)."""
    return Document(
        f"{answer['llm_id']}: capacity for {answer['demand']['name']}",
        [
            Headline(headline(answer)),
            *(Note(text, "warning") for text in answer["warnings"]),
            *_sections(answer),
            Note(source_line(answer)),
        ],
        answer,
        _asked(answer),
        origin,
    )


def capacity_documents(
    answers: Sequence[Answer], facts: Answer, origin: Mapping[str, Any]
) -> Document:
    """Return the answers for several LLMs and one SLO as one document.

    `facts` are the `slo`, the `demand` and, by LLM, why it has `no_answer`.
    """
    warnings = [f"{llm_id} has no answer: {why}" for llm_id, why in facts["no_answer"].items()]
    warnings += dict.fromkeys(line for answer in answers for line in answer["warnings"])
    return Document(
        f"Capacity: {facts['slo']['slo_id']}",
        [
            *([] if answers else [Headline("No LLM has an answer.")]),
            *(Note(text, "warning") for text in warnings),
            *(
                Section(answer["llm_id"], [Headline(headline(answer)), *_sections(answer)])
                for answer in answers
            ),
        ],
        {**facts, "answers": answers, "provenance": origin},
        _asked(answers[0]) if answers else f"for the traffic of {facts['demand']['name']}",
        origin,
    )


def _sections(answer: Answer) -> list[Block]:
    rows, beaten = split_beaten(answer["alternatives"])
    header = ["Deployment", "Price", "Probability", "Why"]
    table, others = (
        Table(header, [profile_cells(row) for row in part], {0, 3}, has_header_in_text=False)
        for part in (rows, beaten)
    )
    notes = beaten_notes(beaten, answer["risk"])
    blocks: list[Block] = [Section("GPU profiles", [table, *notes])]
    if beaten:
        blocks.append(Section("GPU profiles that others beat", [others], is_detail=True))
    if answer["replicas"] is None:
        return blocks

    caption = (
        f"Traffic in buckets of {answer['timeline']['bucket_s']} s; latencies and failures "
        f"{_windows_words(answer['slo'])}, simulated with the law of the draw that needs these "
        "replicas."
    )
    neighbours = [
        [
            plural(row["replicas"], "replica"),
            f"{row['usd_per_hour']:.2f} USD/h",
            _chance(row),
            missed_words(row),
        ]
        for row in answer["neighbours"]
    ]
    header_of_counts = ["Replicas", "Price", "Probability", "Windows"]
    how = "the likeliest law" if answer["probability_met"] is None else "a draw that needs so many"
    lines = [failure_line(answer), growth_line(answer), burst_line(answer), schedule_line(answer)]
    # A row where the number changes says as much as one for each hour.
    runs = groupby(answer["schedule"]["by_slot"], key=lambda row: row["replicas"])
    slots = [[next(run)["slot"], replicas] for replicas, run in runs]
    return [
        Section("Timeline", [Chart(lambda: _timeline(answer), caption)]),
        *blocks,
        Section("How to read these numbers", [Note(_RATE_NOTE)], is_detail=True),
        Section(
            f"With {deployment(answer)}, by {how}",
            [
                Table(header_of_counts, neighbours, {0, 3}, has_header_in_text=False),
                Facts(lines),
            ],
        ),
        Section("Schedule", [Table(["From", "Replicas"], slots)], is_detail=len(slots) < 2),
    ]


def _timeline(answer: Answer) -> str:
    """Return the figure: traffic, replicas, each latency against its limit, and failures."""
    from sextant.pages.charts import Axis, Curve, Panel, panels_figure

    demand, timeline = answer["demand"], answer["timeline"]
    fixed, by_slot = timeline["fixed"], timeline["scheduled_replicas"]
    start = demand["start_time"] and demand["start_time"].replace("T", " ")
    unit = time_unit(demand["duration_s"], start)
    end = demand["duration_s"] / unit.unit_s

    def steps(name: str, starts_s: Sequence[float], values: Sequence[Any]) -> Curve:
        """Hold each value until the next start, the last to the end."""
        edges = [min(each / unit.unit_s, end) for each in starts_s]
        return Curve(name, [*edges, end], [*values, values[-1]])

    rates = timeline["request_rate_rps"]
    buckets = [place * timeline["bucket_s"] for place in range(len(rates))]
    slots = [place * timeline["slot_s"] for place in range(len(by_slot))]
    curves = {
        "Requests/s": [steps("traffic", buckets, rates)],
        "Replicas": [steps("fixed", [0.0], [timeline["replicas"]])],
    }
    if len(by_slot) > 1:
        curves["Replicas"].append(steps("scheduled", slots, by_slot))
    for name, limit in limits_of(answer["slo"]).items():
        values, starts = fixed[f"{name}_ms"], fixed["start_s"]
        own = [steps("fixed", starts, values)]
        if len(by_slot) > 1:
            row = timeline["scheduled"]
            own.append(steps("scheduled", row["start_s"], row[f"{name}_ms"]))
        missed = [value if value and value > limit.limit_ms else None for value in values]
        if any(missed):
            own.append(steps("missed", starts, missed)._replace(is_marks=True))
        own.append(Curve("limit", [0.0, end], [limit.limit_ms] * 2, is_reference=True))
        curves[f"{METRICS[name]}, p{limit.percentile} (ms)"] = own
    failed = [None if share is None else 100 * share for share in fixed["failed_fraction"]]
    curves["Failed (%)"] = [steps("fixed", fixed["start_s"], failed)]
    highest = {
        "Replicas": 1.15 * timeline["replicas"] + 0.5,
        "Failed (%)": max(1.0, 1.1 * max(filter(None, failed), default=0.0)),
    }
    x = Axis(unit.label, low=-0.01 * end, high=1.01 * end)
    return panels_figure(
        [
            Panel("", x, Axis(label, low=0, high=highest.get(label)), each)
            for label, each in curves.items()
        ],
        f"{answer['llm_id']}: traffic, replicas, latencies and failures over time",
        n_columns=1,
        height_in=1.45,
        is_step=True,
    )


def headline(answer: Answer) -> str:
    """Return the answer in one line."""
    window = _windows_words(answer["slo"])
    if answer["replicas"] is None:
        wanted = f"with probability {1 - answer['risk']:.10g} or more"
        return f"{answer['llm_id']}: no GPU profile meets the SLO {window} {wanted}"
    met = answer["probability_met"]
    sure = "by the likeliest law" if met is None else f"with probability {chance(met)}"
    return f"{answer['llm_id']}: {deployment(answer)}; meets the SLO {window} {sure} (simulated)"


def _windows_words(slo: Answer) -> str:
    """Return e.g. `in every window of 5 minutes`."""
    if slo["window_s"] is None:
        return "over the whole time"
    return f"in every window of {duration_words(slo['window_s'])}"


def _asked(answer: Answer) -> str:
    """Return what arrives, and the limits, a line each."""
    demand, slo = answer["demand"], answer["slo"]
    bursts = {"1s": "second", "10s": "10 seconds", "60s": "minute"}
    most = [f"{number(demand['busiest'][key])} in the busiest {bursts[key]}" for key in bursts]
    gaps = "" if demand["gap_cv"] is None else f", CV of the gaps {number(demand['gap_cv'])}"
    words = [
        f"p{limit.percentile} of {METRICS[name]} ≤ {limit.limit_ms:g} ms"
        for name, limit in limits_of(slo).items()
    ]
    if slo["goodput"] is not None:
        words.append(f"{percent(slo['goodput'])} of the requests within all limits")
    words.append(f"at most {percent(slo['max_failed'])} of them refused or timed out")
    return (
        f"for {demand['name']}: {plural(demand['n_requests'], 'request')} in "
        f"{duration_words(demand['duration_s'])} ({rate_words(demand['rate_rps'])}; "
        f"{listed(most)}{gaps}), {number(demand['mean_input_tokens'])} input and "
        f"{number(demand['mean_output_tokens'])} output tokens on average,\n"
        f"so that {listed(words)}, {_windows_words(slo)}"
    )


def profile_cells(row: Answer) -> list[str]:
    """Return the cells of a GPU profile: its name, price and probability, and why."""
    name = row["gpu_profile_id"] + ("" if row["is_gpu_measured"] else " (GPU never measured)")
    if row["status"] == "meets":
        price = f"{row['usd_per_hour']:.2f} USD/h"
        return [f"{row['replicas']} × {name}", price, _chance(row), _why(row)]
    return [name, "ruled out" if row["status"] == "does_not_fit" else "misses", "", _why(row)]


def _chance(row: Answer) -> str:
    return "" if row["probability_met"] is None else chance(row["probability_met"])


_BINDS = {
    "compute": "beyond it the queue grows without end: compute binds",
    "kv_cache": "beyond it the queue grows without end: the KV cache binds",
    "batch": "beyond it the queue grows without end: --max-num-seqs and --max-num-batched-tokens "
    "bind",
}


def _why(row: Answer) -> str:
    if row["status"] == "does_not_fit":
        return str(row["reason"])
    limit, ratio = METRICS.get(row["alone_limit"]), row["alone_ratio"] or 0.0
    share = f"up to {percent(row['refused_share'])} of the requests of a window"
    too_long = (
        f"{plural(row['n_refused'], 'request')} ({share}) beyond its context or KV cache, or timed "
        "out even alone: raise --max-failed, --max-model-len, the memory or --timeout-s"
    )
    if row["status"] == "refused":
        return too_long
    if row["status"] == "too_slow":
        if ratio > 1:
            return f"{limit} of requests alone is {number(ratio)} times its limit"
        return "too few requests alone are within all limits (--goodput)"
    rate = row["rate_at_slo_rps"]
    serves = "one replica serves them at any rate"
    if rate is not None:
        serves = f"a replica serves {per_second(rate)}"
    if row["status"] == "too_many":
        return f"{serves}: it takes more than {MOST_REPLICAS:,} replicas, which is not simulated"
    low, high = row["replicas_lo"], row["replicas_hi"]
    if row["status"] == "unsure":
        cause = f"{limit} of requests alone, {number(ratio)} times its limit at the likeliest law, "
        cause += "is above it in more draws than the risk allows: raise it, or --risk"
        return f"{serves}; {too_long if row['n_refused'] else cause}"
    binds = f" ({_BINDS[row['binds']]})" if row["binds"] in _BINDS else ""
    if high is None:
        return f"{serves}{binds}; {number(low)} or more replicas, none is enough in 5% of the draws"
    return f"{serves}{binds}; 90% interval {number(low)} to {plural(high, 'replica')}"


def missed_words(row: Answer) -> str:
    """Return results by window, e.g. `3 of 12 windows missed (TTFT 2.1 times its limit)`."""
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
        ratio = f"{number(row['worst_ratio'])} times its limit"
        worst = f" ({METRICS[row['worst_limit']]} up to {ratio})"
    return f"{windows} missed{worst}{failed}"


def failure_line(answer: Answer) -> str:
    """Return what happens when a replica fails."""
    row = answer["failure"]
    back = duration_words(row["back_s"] - row["at_s"])
    when = _moment(answer, row["at_s"])
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
    """Return the results of the busiest minute by itself."""
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
        f"the busiest minute ({_moment(answer, row['start_s'])}, "
        f"{plural(row['n_requests'], 'request')}) by itself is {state}: {listed(each)}{others}"
    )


def schedule_line(answer: Answer) -> str:
    """Return what a schedule saves."""
    row = answer["schedule"]
    counts = row["replicas"]
    slot = "the hour" if row["slot_s"] == HOUR_S else duration_words(row["slot_s"])
    if len(counts) == 1:
        return f"by {slot}: the traffic is no longer than that, so nothing can be saved"
    state = "all windows met"
    if row["n_windows_missed"]:
        state = f"{plural(row['n_windows_missed'], 'window')} missed"
    saved = f"saves {percent(row['saved'])} ({row['usd_per_hour_saved']:.2f} USD/h on average)"
    if row["saved"] <= 0:
        saved = "saves nothing: starting takes as much"
    return (
        f"by {slot}: {number(min(counts))} to {plural(max(counts), 'replica')}, "
        f"{number(row['replica_hours'])} replica hours instead of "
        f"{number(row['fixed_replica_hours'])}, with {duration_words(row['startup_s'])} to start "
        f"one: {saved}; {state}"
    )


def _moment(answer: Answer, after_s: float) -> str:
    """Return a time of the traffic by its clock, or counted from its start."""
    start = answer["demand"]["start_time"]
    if start is not None:
        return f"{datetime.fromisoformat(start) + timedelta(seconds=after_s):%Y-%m-%d %H:%M:%S}"
    minutes, seconds = divmod(round(after_s), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} after its start"
