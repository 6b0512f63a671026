"""A capacity answer for people and for rule `size_capacity`: blocks, table, page and JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sextant.answer import answer as shared
from sextant.ask.api_prices import api_section
from sextant.ask.question import Question
from sextant.ask.traffic import TraceTraffic, demand_of_trace, traffic_at_rate
from sextant.base.errors import InputError
from sextant.base.files import provenance
from sextant.capacity.capacity import CapacityQuestion, answer_capacity
from sextant.decide.sizing import MOST_REPLICAS
from sextant.decide.windows import WINDOW_S, Target
from sextant.experiment.experiment import Experiment
from sextant.facts.slo import METRICS, SLO, limits_of
from sextant.pages import blocks as page_blocks
from sextant.pages.blocks import Block, Chart, Document, Facts, Headline, Note, Section, Table
from sextant.pages.words import (
    HOUR_S,
    chance,
    duration_words,
    joined,
    number,
    per_second,
    percent,
    plural,
    rate_words,
    time_unit,
)
from sextant.points.measured import load_run
from sextant.workload.lengths import Length, RequestLengths
from sextant.workload.requests import Traffic, mean_lengths_of

Answer = Mapping[str, Any]
_RATE_NOTE = (
    "A replica's rate: the mean rate of such traffic, gaps and windows stretched alike, at which "
    "as many replicas as the likeliest law needs just meet the SLO, over their number. The "
    "probability is over draws of the law of a step and of the traffic."
)
_BINDS = {
    "compute": "beyond it the queue grows without end: compute binds",
    "kv_cache": "beyond it the queue grows without end: the KV cache binds",
    "batch": "beyond it the queue grows without end: --max-num-seqs and --max-num-batched-tokens "
    "bind",
}
_POLICIES = {
    "fixed": "replicas that stay",
    "schedule": "schedule",
    "policy": "your policy",
    "tuned": "tuned",
    "foresight": "foresight",
}
_POLICIES_NOTE = (
    "GPU hours are of the whole trace, starts included. Foresight knows the traffic and orders "
    "replicas before they are needed, sized window by window. A policy starts with the replicas "
    "that the first window needs."
)
_STRINGS = ("source", "slo_id", "trace_id", "llm_id", "gpu_profile_id", "status", "binds")
_NUMBERS = ("usd_per_hour", "probability_met", "rate_at_slo_rps", "refused_share", "alone_ratio")
_COUNTS = ("replicas", "replicas_lo", "replicas_hi", "n_refused")
# The last two are of the chosen profile alone, where a replica fails.
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in (*_STRINGS, "alone_limit", "reason")),
        *((name, pa.float64()) for name in _NUMBERS),
        *((name, pa.bool_()) for name in ("is_gpu_measured", "is_chosen")),
        *((name, pa.int64()) for name in (*_COUNTS, "n_windows", "n_windows_missed_by_failure")),
    ]
)


def capacity_document(answer: Answer, origin: Mapping[str, Any] | None = None) -> Document:
    """Return an answer of `answer_capacity` for people (blocks) and programs (data)."""
    warnings = [Note(text, "warning") for text in answer["warnings"]]
    blocks = [*warnings, *api_section(answer), *_sections(answer), Note(shared.source_line(answer))]
    title = f"{answer['llm_id']}: capacity for {answer['demand']['name']}"
    return Document(title, [Headline(_headline(answer)), *blocks], answer, _asked(answer), origin)


def _sections(answer: Answer) -> list[Block]:
    rows, beaten = shared.split_beaten(answer["alternatives"])
    header = ["Deployment", "Price", "Probability", "Why"]
    table, others = (
        Table(
            header, [capacity_profile_cells(row) for row in part], {0, 3}, has_header_in_text=False
        )
        for part in (rows, beaten)
    )
    notes = shared.beaten_notes(beaten, answer["risk"])
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
        (plural(row["replicas"], "replica"), _price(row), _chance(row), missed_words(row))
        for row in answer["neighbours"]
    ]
    columns = ["Replicas", "Price", "Probability", "Windows"]
    counts = Table(columns, neighbours, {0, 3}, has_header_in_text=False)
    how = "the likeliest law" if answer["probability_met"] is None else "a draw that needs so many"
    # A row where the number changes says as much as one for each hour.
    names = ["replicas", "draft_tokens"][: 1 + ("draft_tokens" in answer["schedule"]["by_slot"][0])]
    runs = groupby(answer["schedule"]["by_slot"], key=lambda row: [row[name] for name in names])
    slots = [[next(run)["slot"], *numbers] for numbers, run in runs]
    header = ["From", "Replicas", "Best draft tokens"][: 1 + len(names)]
    return [
        Section("Timeline", [Chart(lambda: _timeline(answer), caption)]),
        *blocks,
        Section("How to read these numbers", [Note(_RATE_NOTE)], is_detail=True),
        Section(
            f"With {shared.deployment_words(answer)}, by {how}",
            [counts, Facts(_change_lines(answer))],
        ),
        Section("Schedule", [Table(header, slots)], is_detail=len(slots) < 2),
        *(_scaling_sections(answer) if "scaling" in answer else []),
    ]


def _scaling_sections(answer: Answer) -> list[Block]:
    """Return what policies cost and attain, the worst minutes, and the tuned policy."""
    found, start = answer["scaling"], answer["demand"]["start_time"]
    rows, worst = [], []
    for row in found["policies"]:
        cells = [number(row["gpu_hours"]), number(row["usd"]), percent(row["attainment"]), ""]
        if row["attainment_lo"] is not None:
            shares = " to ".join(percent(row[f"attainment_{end}"]) for end in ("lo", "hi"))
            hours = [number(row[f"replica_hours_{end}"] * found["n_gpus"]) for end in ("lo", "hi")]
            cells[-1] = f"{shares}, {' to '.join(hours)} GPU hours"
        rows.append([_POLICIES[row["policy"]], *cells])
    for row in found["worst"]:
        why = f"the policy {'has' if row['why'] == 'most' else 'asks for'} no more"
        if row["why"] == "starting":
            more = row["ordered"] - row["ready"]
            why = f"{more} more {'is' if more == 1 else 'are'} starting"
        beyond = f"{number(row['n_beyond'])} of {number(row['n_requests'])}"
        when = shared.moment_words(start, row["start_s"])
        worst.append([when, beyond, number(row["ready"]), why])
    header = ["Policy", "GPU hours", "USD", "Windows met", "In other draws"]
    blocks: list[Block] = [Table(header, rows, {0, 4})]
    if worst:
        header = ["Worst minute", "Requests beyond a limit", "Replicas ready", "Why"]
        blocks.append(Table(header, worst, {0, 3}))
    if (made := found["manifest"]) is not None:
        usd, spec = {row["policy"]: row["usd"] for row in found["policies"]}, made["spec"]
        saved = 1 - usd["tuned"] / usd["fixed"]
        verdict = f"saves {percent(saved)}" if saved > 0 else "costs more: keep those"
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        of = [row["metadata"] for row in spec["triggers"]]
        targets = joined([f"{each['query']} at {each['threshold']}" for each in of])
        text = (
            f"Tuned: {targets} for each replica, {spec['minReplicaCount']} to "
            f"{spec['maxReplicaCount']} replicas, a peak remembered for "
            f"{behavior['scaleDown']['stabilizationWindowSeconds']} s. Beside replicas that stay "
            f"it {verdict}."
        )
        blocks.append(Note(text))
    elif (asked := found["asked_attainment"]) is not None:
        text = f"No target attains {percent(asked)} of the windows: no file is written."
        blocks.append(Note(text, "warning"))
    return [Section("Autoscaling", [*blocks, Note(_POLICIES_NOTE)])]


def _timeline(answer: Answer) -> str:
    """Return the figure: traffic, replicas, each latency against its limit, and failures."""
    from sextant.pages.charts import Axis, Curve, Panel, panels_figure

    demand, timeline = answer["demand"], answer["timeline"]
    fixed, by_slot = timeline["fixed"], timeline["scheduled_replicas"]
    start = demand["start_time"] and demand["start_time"].replace("T", " ")
    unit_s, since = time_unit(demand["duration_s"], start)
    end = demand["duration_s"] / unit_s

    def steps(name: str, starts_s: Sequence[float], values: Sequence[Any]) -> Curve:
        """Hold each value until the next start, the last to the end."""
        edges = [min(each / unit_s, end) for each in starts_s]
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
    policy = answer.get("scaling", {}).get("timeline")
    if policy is not None:
        curves["Replicas"].append(steps("policy", policy["time_s"], policy["ready"]))
    for name, limit in limits_of(answer["slo"]).items():
        values, starts = fixed[f"{name}_ms"], fixed["start_s"]
        own = [steps("fixed", starts, values)]
        if len(by_slot) > 1:
            row = timeline["scheduled"]
            own.append(steps("scheduled", row["start_s"], row[f"{name}_ms"]))
        if policy is not None:
            own.append(steps("policy", policy["start_s"], policy[f"{name}_ms"]))
        missed = [value if value and value > limit.limit_ms else None for value in values]
        if any(missed):
            own.append(steps("missed", starts, missed)._replace(is_marks=True))
        own.append(Curve("limit", [0.0, end], [limit.limit_ms] * 2, is_reference=True))
        curves[f"{METRICS[name]}, p{limit.percentile} (ms)"] = own
    failed = [None if share is None else 100 * share for share in fixed["failed_fraction"]]
    curves["Failed (%)"] = [steps("fixed", fixed["start_s"], failed)]
    highest = {
        "Replicas": 1.15 * max(timeline["replicas"], *policy["ready"] if policy else [0]) + 0.5,
        "Failed (%)": max(1.0, 1.1 * max(filter(None, failed), default=0.0)),
    }
    x = Axis(since, low=-0.01 * end, high=1.01 * end)
    panels = [
        Panel("", x, Axis(label, low=0, high=highest.get(label)), each)
        for label, each in curves.items()
    ]
    title = f"{answer['llm_id']}: traffic, replicas, latencies and failures over time"
    return panels_figure(panels, title, n_columns=1, height_in=1.45, is_step=True)


def _headline(answer: Answer) -> str:
    llm_id, window, met = answer["llm_id"], _windows_words(answer["slo"]), answer["probability_met"]
    if answer["replicas"] is None:
        wanted = f"with probability {1 - answer['risk']:.10g} or more"
        return f"{llm_id}: no GPU profile meets the SLO {window} {wanted}"
    sure = "by the likeliest law" if met is None else f"with probability {chance(met)}"
    return f"{llm_id}: {shared.chosen_words(answer)}; meets the SLO {window} {sure} (simulated)"


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
        f"{duration_words(demand['duration_s'])} ("
        f"{rate_words(demand['rate_rps'])}; {joined(most)}{gaps}), "
        f"{number(demand['mean_input_tokens'])} input and "
        f"{number(demand['mean_output_tokens'])} output tokens on average,\n"
        f"so that {joined(words)}, {_windows_words(slo)}"
    )


def capacity_profile_cells(row: Answer) -> list[str]:
    """Return the cells of a GPU profile: its name, price and probability, and why."""
    name = row["gpu_profile_id"] + ("" if row["is_gpu_measured"] else " (GPU never measured)")
    if row["status"] == "meets":
        return [f"{row['replicas']} × {name}", _price(row), _chance(row), _why(row)]
    return [name, "ruled out" if row["status"] == "does_not_fit" else "misses", "", _why(row)]


def _price(row: Answer) -> str:
    return f"{row['usd_per_hour']:.2f} USD/h"


def _chance(row: Answer) -> str:
    return "" if row["probability_met"] is None else chance(row["probability_met"])


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
    return f"{serves}{binds}; 90% interval {_span(low, high)}"


def _span(low: int, high: int) -> str:
    return f"{number(low)} to {plural(high, 'replica')}" if low < high else plural(high, "replica")


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


def _change_lines(answer: Answer) -> list[str]:
    """Return what a failed replica does, what more traffic does, and what a schedule saves."""
    lost, growth, start = answer["failure"], answer["growth"], answer["demand"]["start_time"]
    back = duration_words(lost["back_s"] - lost["at_s"])
    when = shared.moment_words(start, lost["at_s"])
    enough = "no number of replicas is enough"
    if growth["replicas_needed"] is not None:
        enough = f"it takes {plural(growth['replicas_needed'], 'replica')}, {_price(growth)}"
    return [
        f"a replica fails in the busiest minute ({when}), back after {back}: {missed_words(lost)}",
        f"traffic × {growth['factor']:g}: {missed_words(growth)}; {enough}",
        _schedule_line(answer["schedule"]),
        *([split_line(answer["split"], answer["usd_per_hour"])] if "split" in answer else []),
        *_drafting_lines(answer["schedule"].get("drafting")),
    ]


def split_line(row: Answer, usd_per_hour: float) -> str:
    """Return whether two pools are cheaper than one at this price."""
    text = f"two pools, split at {row['tokens']:,} input tokens: "
    if row["usd_per_hour"] is None:
        return text + "no numbers of replicas are likely enough"
    pools = [f"{row[n]['replicas']} × {row[n]['gpu_profile_id']} ({n})" for n in ("short", "long")]
    text += f"{' and '.join(pools)}, {_price(row)}, probability {_chance(row)}"
    saved = usd_per_hour - row["usd_per_hour"]
    verdict = f"{abs(saved):.2f} USD/h {'less' if saved > 0 else 'more'} than one pool"
    return f"{text}: {verdict if round(saved, 2) else 'as much as one pool'}"


def _drafting_lines(busiest: Answer | None) -> list[str]:
    """Return what speculation is worth at the busiest time, where it is asked about."""
    if busiest is None:
        return []
    if not busiest["draft_tokens"]:
        return ["speculation does not pay at the busiest time: leave it out"]
    pays = f"{percent(busiest['gain'])} more requests/s of as many users"
    drafts = f"{plural(busiest['draft_tokens'], 'draft token')}"
    sure = f"with probability {chance(busiest['probability_gain'])}"
    return [f"speculation pays at the busiest time: {drafts}, {pays}, {sure}"]


def _schedule_line(row: Answer) -> str:
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
    hours, fixed_hours = number(row["replica_hours"]), number(row["fixed_replica_hours"])
    return (
        f"by {slot}: {_span(min(counts), max(counts))}, {hours} replica "
        f"hours instead of {fixed_hours}, with {duration_words(row['startup_s'])} to start "
        f"one: {saved}; {state}"
    )


def size_files(
    inputs: Mapping[str, str | Path],
    experiment: Experiment,
    slo: SLO,
    outputs: Mapping[str, str | Path],
    *,
    source: str,
    decision: Mapping[str, str],
    seed: int,
) -> None:
    """Size each LLM for the traffic of an SLO, and write table, page and JSON.

    `inputs` are paths of tables `point` and `feasibility`, of the SLO's `trace`, or of `requests`
    in the folder of the workload that arrives at its rate; the workload's caps shorten requests.
    `outputs` are paths of the `table`, the `html` page and its `json`; `source` names the
    characterization, `decision` the workload and scenario of its points.
    """
    window_s = WINDOW_S if slo.window_s is None else slo.window_s or None
    workload = experiment.workloads[decision["workload_id"]]
    traffic, notes = _traffic(slo, inputs, window_s, workload, seed)
    demand = traffic.drawn(0)
    lengths = mean_lengths_of(demand)
    target = Target(slo.limits, slo.goodput, slo.allowed_failures, window_s)
    known = load_run(inputs, experiment, source, decision)
    key = {"source": source, "slo_id": slo.slo_id, "trace_id": slo.trace_id}
    answers, no_answer, rows = [], {}, []
    for llm_id in experiment.llms:
        question = Question(slo, llm_id, known=known, requests=lengths, seed=seed)
        try:
            answer = answer_capacity(CapacityQuestion(question, traffic, target), notes).data
        except InputError as error:
            no_answer[llm_id] = str(error)
            continue
        answers.append(answer | {"text": page_blocks.as_text(capacity_document(answer))})
        for each in answer["alternatives"]:
            row = {**each, **key, "llm_id": llm_id, "is_chosen": False}
            if each["gpu_profile_id"] == answer["gpu_profile_id"]:
                lost, row["is_chosen"] = answer["failure"], True
                row["n_windows"] = lost["n_windows"]
                row["n_windows_missed_by_failure"] = lost["n_windows_missed"]
            rows.append(row)
    rows += [
        key | {"llm_id": llm_id, "status": "no_answer", "reason": why}
        for llm_id, why in no_answer.items()
    ]
    warnings = [f"{llm_id} has no answer: {why}" for llm_id, why in no_answer.items()]
    warnings += dict.fromkeys(line for answer in answers for line in answer["warnings"])
    blocks: list[Block] = [] if answers else [Headline("No LLM has an answer.")]
    blocks += [Note(text, "warning") for text in warnings]
    for answer in answers:
        blocks.append(Section(answer["llm_id"], [Headline(_headline(answer)), *_sections(answer)]))
    origin = provenance(dict(inputs), seed=seed)
    facts = {"slo": slo.facts(), "demand": demand.facts(), "no_answer": no_answer}
    data = {**facts, "answers": answers, "provenance": origin}
    about = _asked(answers[0]) if answers else f"for the traffic of {demand.name}"
    document = Document(f"Capacity: {slo.slo_id}", blocks, data, about, origin)
    shared.write_results(outputs, rows, _SCHEMA, document)


def _traffic(
    slo: SLO,
    inputs: Mapping[str, str | Path],
    window_s: float | None,
    workload: Mapping[str, Any],
    seed: int,
) -> tuple[Traffic, list[str]]:
    """Return the traffic, and notes about it: a workload's caps shorten a trace's requests."""
    if slo.trace_id is None:
        lengths = [Length(mean, mean) for mean in slo.lengths.values()]
        requests = RequestLengths(*lengths) if lengths else None
        folder = Path(inputs["requests"]).parent
        return traffic_at_rate(slo.load, folder, requests, first_seed=seed), []
    demand = demand_of_trace(inputs["trace"], window_s=window_s or WINDOW_S)
    sides = ("input_tokens", "output_tokens")
    caps = {side: np.minimum(getattr(demand, side), workload[f"max_{side}"]) for side in sides}
    n_capped = int(sum((caps[side] < getattr(demand, side)) for side in sides).astype(bool).sum())
    if not n_capped:
        return TraceTraffic(demand, window_s), []
    note = (
        f"{n_capped:,} of {demand.n:,} requests are shortened to the caps of the workload "
        f"{workload['workload_id']}, as in the measurements."
    )
    origin = replace(demand.origin, mean_lengths=None)
    return TraceTraffic(replace(demand, **caps, origin=origin), window_s), [note]
