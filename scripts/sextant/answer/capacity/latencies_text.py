"""What a simulation of one deployment found, as lines of text and as a page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sextant.answer.text import source_line
from sextant.base.files import provenance
from sextant.pages.charts import Curve, Panel, panels_figure
from sextant.pages.figure import Axis
from sextant.pages.sections import Section, Table
from sextant.pages.wording import aligned, duration_words, number, percent, plural
from sextant.pages.write import render_sections, write_page
from sextant.points.metrics import SHOWN, STATISTICS

RATES = {
    "throughput_tok_s": ("output tokens a second", number),
    "request_rate_rps": ("requests a second", number),
    "goodput_rps": ("goodput, requests a second", number),
    "failed_fraction": ("failed", percent),
    "utilisation": ("engines busy", percent),
    "kv_used_fraction": ("KV cache in use", percent),
    "cached_fraction": ("input found in the prefix cache", percent),
    "preemptions": ("preemptions", number),
}
_HEADER = ["", "mean", *STATISTICS]


def as_text(facts: Mapping[str, Any]) -> str:
    """Return the answer as lines."""
    rows = [_header(facts), *_latency_rows(facts)]
    return "\n".join(
        [
            headline(facts),
            *facts["warnings"],
            "",
            *aligned(rows, are_numbers=True),
            "",
            *aligned(_rate_rows(facts)),
            "",
            source_line(facts),
        ]
    )


def headline(facts: Mapping[str, Any]) -> str:
    """Return what was simulated in one line."""
    load = facts["load"]
    is_open = load["users"] is None
    many = plural(load["n_requests"], "request") if is_open else plural(load["users"], "user")
    return (
        f"{facts['llm_id']} on {facts['replicas']} × {facts['gpu_profile_id']}: {many} of "
        f"{load['name']} in {duration_words(load['duration_s'])}, "
        f"{number(load['mean_input_tokens'])} input and {number(load['mean_output_tokens'])} "
        "output tokens on average (simulated)"
    )


def _header(facts: Mapping[str, Any]) -> list[str]:
    return [*_HEADER, "90% interval of p95"] if facts["intervals"] else _HEADER


def _latency_rows(facts: Mapping[str, Any]) -> list[list[str]]:
    return [
        [label, *map(number, facts[name].values()), *_interval(facts, number, name, "p95")]
        for name, label in SHOWN.items()
    ]


def _rate_rows(facts: Mapping[str, Any]) -> list[list[str]]:
    return [
        [label, write(facts[name]), *_interval(facts, write, name)]
        for name, (label, write) in RATES.items()
    ]


def _interval(facts: Mapping[str, Any], write: Any, *names: str) -> list[str]:
    """Return the cell of an interval, if there are any."""
    found = facts["intervals"]
    if not found:
        return []
    for name in names:
        found = found[name]
    return ["–" if None in found else " to ".join(map(write, found))]


def write_simulation(facts: Mapping[str, Any], out: Path) -> None:
    """Write an answer of `simulate_llm` as HTML; the same answer gives the same bytes."""
    has_intervals = bool(facts["intervals"])
    latencies = Section.of_text(
        "Latencies",
        "Of requests that came after the warm-up and were answered; ITL is the gap between tokens.",
        _figure(facts),
        Table(_header(facts), _latency_rows(facts)),
    )
    rates = Section.of_text(
        "Rates and use",
        "Intervals hold 90% of the draws of the law of a step." if has_intervals else "",
        table=Table(["", "", "90% interval"][: 3 if has_intervals else 2], _rate_rows(facts)),
    )
    law = [[name, number(value)] for name, value in facts["law"].items()]
    given = {"replicas": facts["replicas"], "router": facts["router"], **facts["scheduler"]}
    settings = [[name, "–" if value is None else str(value)] for name, value in given.items()]
    servers = Section.of_text("Servers", "vLLM's settings, and the law of a step.")
    servers.tables += [Table(["setting", ""], settings), Table(["term", ""], law)]
    origin = Section.of_text("Where this comes from", source_line(facts))
    title = f"{facts['llm_id']}: simulation"
    html = render_sections(
        title,
        f"{headline(facts)}.",
        [latencies, rates, servers, origin],
        provenance(),
        cautions=facts["warnings"],
    )
    write_page(out, html)


def _figure(facts: Mapping[str, Any]) -> str:
    found = facts["distribution"]
    share = Axis("Share of requests", low=0, high=1.02)
    panels = [
        Panel(label, Axis(label, is_log=True), share, [Curve(label, found[name], found["share"])])
        for name, label in SHOWN.items()
        if name in found and found[name][0] is not None
    ]
    return panels_figure(panels, "Latencies of all requests", is_step=True) if panels else ""
