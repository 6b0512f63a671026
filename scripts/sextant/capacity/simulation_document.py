"""The answer of `sextant simulate` in words: blocks for a person, beside the JSON."""

from collections.abc import Callable, Mapping
from typing import Any

from sextant.answer.words import serving_words, source_notes, source_words
from sextant.capacity.simulation import SimulationAnswer
from sextant.pages.blocks import Block, Document, Headline, Note, Section, Table
from sextant.pages.words import duration_words, number, percent, plural
from sextant.points.metrics import SHOWN, STATISTICS

_RATES: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "throughput_tok_s": ("output tokens a second", number),
    "request_rate_rps": ("requests a second", number),
    "goodput_rps": ("goodput, requests a second", number),
    "failed_fraction": ("failed", percent),
    "utilisation": ("engines busy", percent),
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
    latencies = [
        [label, *facts[name].values(), *_interval(facts, number, name, "p95")]
        for name, label in SHOWN.items()
    ]
    rates = [
        [label, write(facts[name]), *_interval(facts, write, name)]
        for name, (label, write) in _RATES.items()
    ]
    header = ["Latency", "mean", *STATISTICS, *["90% interval of p95"] * has_intervals]
    rate_header = ["Rate or use", "", *["90% interval"] * has_intervals]
    stated = {
        "replicas": answer.deployment.replicas,
        "router": answer.deployment.router,
        **facts["scheduler"],
    }
    settings = [[name, "–" if value is None else str(value)] for name, value in stated.items()]
    law = [[name, number(value)] for name, value in facts["law"].items()]
    source = " ".join(
        filter(
            None,
            [
                source_words(case.source) + serving_words(case.serving),
                *source_notes(case.source),
            ],
        )
    )
    blocks: list[Block] = [
        Headline(_headline(answer)),
        *(Note(text, "warning") for text in answer.warnings),
        Table(header, latencies),
        Table(rate_header, rates, {0, 1, 2}, has_header_in_text=False),
        *_minute_section(answer),
        Section("vLLM's settings", [Table(["Setting", "Value"], settings, {0, 1})], is_detail=True),
        Section("The law of a step", [Table(["Term", "Value"], law)], is_detail=True),
        Note(source),
    ]
    return Document(f"{case.llm_id}: simulation", blocks, facts, origin=origin)


def _interval(facts: Mapping[str, Any], write: Callable[[Any], str], *names: str) -> list[str]:
    """Return the 90% interval of a number as a cell; none without intervals."""
    ends = facts["intervals"]
    if not ends:
        return []
    for name in names:
        ends = ends[name]
    return ["–" if None in ends else " to ".join(map(write, ends))]


def _headline(answer: SimulationAnswer) -> str:
    load = answer.to_dict()["load"]
    deployment = answer.deployment
    count = plural(load["n_requests"], "request")
    lasted_s = answer.sent.duration_s
    if answer.sent.users is not None:
        count = plural(answer.sent.users, "user")
    decode = ""
    if deployment.decode_replicas is not None:
        if answer.sent.users is not None:  # who send some requests each
            lasted_s = load["n_requests"] / answer.numbers["request_rate_rps"]
        decode = f" for prefill and {deployment.decode_replicas} × {answer.decode_profile_id}"
        decode += " for decode"
    replicas = f"{deployment.replicas} ×"
    if answer.minutes is not None:
        replicas = "replicas that a policy orders of"
    return (
        f"{answer.laws.case.llm_id} on {replicas} {answer.gpu_profile_id}{decode}: {count} of "
        f"{answer.sent.name} in {duration_words(lasted_s)}, "
        f"{number(load['mean_input_tokens'])} input and {number(load['mean_output_tokens'])} "
        "output tokens on average (simulated)"
    )


def _minute_section(answer: SimulationAnswer) -> list[Block]:
    """Return requests and replicas by minute under a policy; nothing without one."""
    if answer.minutes is None:
        return []
    header = ["From", "Requests", "In flight", "TTFT p50 (ms)", "TTFT p90 (ms)"]
    rows = [
        [duration_words(row["start_s"]), *map(number, [*row.values()][1:])]
        for row in answer.to_dict()["by_minute"]
    ]
    hours = f"{number(answer.replica_hours)} replica hours, starts included"
    table = Table([*header, "Ordered", "Ready"], rows)
    return [Section("By minute", [Note(hours), table])]
