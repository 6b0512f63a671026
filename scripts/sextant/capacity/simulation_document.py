"""The answer of `sextant simulate` in words: blocks for a person, beside the JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sextant.answer.words import serving_words, source_notes, source_words
from sextant.base.files import jsonable
from sextant.capacity.simulation import SimulationAnswer
from sextant.pages.blocks import Block, Document, Headline, Note, Section, Table
from sextant.pages.words import duration_words, number, percent, plural
from sextant.points.metrics import SHOWN, STATISTICS

_RATES: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "throughput_tok_s": ("output tokens a second", number),
    "request_rate_rps": ("requests a second", number),
    "goodput_rps": ("goodput, requests a second", number),
    "failed_fraction": ("failed", percent),
    "busy_share": ("time with any request in flight", percent),
    "kv_used_fraction": ("KV cache in use", percent),
    "cached_fraction": ("input that hit the prefix cache", percent),
    "evicted_blocks": ("blocks evicted from the prefix cache", number),
    "preemptions": ("preemptions", number),
}


def simulation_document(answer: SimulationAnswer, origin: Mapping[str, Any]) -> Document:
    """Return an answer of `simulate_llm` for people (blocks) and programs (data)."""
    facts = answer.to_dict()
    case = answer.laws.case
    has_intervals = bool(answer.intervals)
    intervals = facts["intervals"]
    latencies = [
        [label, *facts[name].values(), *_interval(intervals and intervals[name]["p95"], number)]
        for name, label in SHOWN.items()
    ]
    header = ["Latency", "mean", *STATISTICS, *["90% interval of p95"] * has_intervals]
    rates = [
        [label, write(facts[name]), *_interval(intervals and intervals[name], write)]
        for name, (label, write) in _RATES.items()
        if name != "evicted_blocks" or facts["cached_fraction"]  # else nobody misses them
    ]
    rate_header = ["Rate or use", "", *["90% interval"] * has_intervals]

    settings = {
        "replicas": answer.deployment.replicas,
        "router": answer.deployment.router,
        **jsonable(asdict(answer.servers.scheduler)),
    }
    rows = [[name, "–" if value is None else str(value)] for name, value in settings.items()]
    settings_table = Table(["Setting", "Value"], rows, {0, 1})
    terms = [[name, number(value)] for name, value in asdict(answer.servers.law(0)).items()]
    source = source_words(case.source) + serving_words(case.serving)
    blocks: list[Block] = [
        Headline(_headline(answer)),
        *(Note(text, "warning") for text in answer.warnings),
        Table(header, latencies),
        Table(rate_header, rates, {0, 1, 2}, has_header_in_text=False),
        *_minute_section(answer),
        Section("vLLM's settings", [settings_table], is_detail=True),
        Section("The law of a step", [Table(["Term", "Value"], terms)], is_detail=True),
        Note(" ".join(filter(None, [source, *source_notes(case.source)]))),
    ]
    return Document(f"{case.llm_id}: simulation", blocks, facts, origin=origin)


def _interval(ends: Sequence[Any] | None, write: Callable[[Any], str]) -> list[str]:
    """Return a 90% interval as a cell; no cell without intervals."""
    if ends is None:
        return []
    return ["–" if None in ends else " to ".join(map(write, ends))]


def _headline(answer: SimulationAnswer) -> str:
    load = answer.load
    deployment = answer.deployment
    count = plural(load.n_requests, "request")
    lasted_s = load.duration_s
    if load.users is not None:
        count = plural(load.users, "user")
    decode = ""
    if deployment.decode_replicas is not None:
        if load.users is not None:  # each user sends a number of requests, however long that takes
            lasted_s = answer.simulation.end_s
        decode = f" for prefill and {deployment.decode_replicas} × {answer.decode_profile_id}"
        decode += " for decode"
    replicas = f"{deployment.replicas} ×"
    if answer.minutes is not None:
        replicas = "replicas that a policy orders of"
    return (
        f"{answer.laws.case.llm_id} on {replicas} {answer.gpu_profile_id}{decode}: {count} of "
        f"{load.name} in {duration_words(lasted_s)}, "
        f"{number(load.mean_input_tokens)} input and {number(load.mean_output_tokens)} "
        "output tokens on average (simulated)"
    )


def _minute_section(answer: SimulationAnswer) -> list[Block]:
    """Return requests and replicas by minute under a policy; nothing without one."""
    if answer.minutes is None:
        return []
    header = ["From", "Requests", "In flight", "TTFT p50 (ms)", "TTFT p90 (ms)"]
    rows = [
        [
            duration_words(minute.start_s),
            number(minute.n_requests),
            number(minute.in_flight),
            number(minute.median_ttft_ms),
            number(minute.p90_ttft_ms),
            number(minute.ordered),
            number(minute.ready),
        ]
        for minute in answer.minutes
    ]
    hours = f"{number(answer.replica_hours)} replica hours, starts included, by the best estimate"
    table = Table([*header, "Ordered", "Ready"], rows)
    return [Section("By minute", [Note(hours), table])]
