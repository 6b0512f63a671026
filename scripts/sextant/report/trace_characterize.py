"""All that a report says of a trace: as a dictionary, and as a page with its sections."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sextant.base.files import provenance
from sextant.base.sheets import id_of
from sextant.pages.blocks import Block, Chart, Document, Headline, Note, Section, Table
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.page import check_outputs, write_page
from sextant.pages.wording import (
    duration_words,
    listed,
    number,
    percent,
    plural,
    rate_words,
)
from sextant.report.trace_burstiness import (
    measure_arrival_models,
    measure_burstiness,
    show_arrivals,
    show_burstiness,
)
from sextant.report.trace_file import (
    FittedWorkload,
    TraceFile,
    known_columns,
    open_trace,
    open_workloads,
    overview,
    report_path,
    sample_requests,
)
from sextant.report.trace_lengths import (
    LATENCY,
    measure_fidelity,
    measure_lengths,
    measure_parameters,
    show_fidelity,
    show_lengths,
    show_parameters,
)
from sextant.report.trace_traffic import (
    measure_reliability,
    measure_traffic,
    show_reliability,
    show_traffic,
)
from sextant.workload.request_model import PARAMETERS
from sextant.workload.shared_blocks import read_blocks

_MAX_GROUPS = 12
_AGES_S = (60, 600, 3600, 86_400)
_MOST = 0.9
_MILLION = 1_000_000
_RISE = 1.02
"""A larger cache gets a line of the table if it finds so many times as much as the line above."""


def show_overview(facts: Mapping[str, Any]) -> Section:
    """Return the section of what `trace_file.overview` returns."""
    n_requests, n_failed, duration_s = (
        facts[name] for name in ("n_requests", "n_failed", "duration_s")
    )
    requests, failed = plural(n_requests, "request"), "records no failure"
    if n_failed:
        failed = f"{number(n_failed)} of them failed ({percent(n_failed / n_requests)})"
    takeaway = f"The trace has {requests}, all at one moment: no rate is known."
    if duration_s:
        rate = rate_words((n_requests - 1) / duration_s)
        duration = duration_words(duration_s)
        takeaway = f"The trace has {requests} in {duration}, {rate} on average, and {failed}."
    blocks: list[Block] = [Headline(takeaway)]
    if facts["start_time"] is None:
        text = (
            "The source gives no date: hours and days are counted from the first request, and "
            "need not be those of a clock."
        )
        blocks.append(Note(text))
    if facts["n_rejected"] is None:
        blocks.append(Note("No report of the ingest was given: rows set aside are not known."))
    elif facts["n_rejected"]:
        reasons = sorted(facts["rejected_by_reason"].items(), key=lambda item: (-item[1], item[0]))
        counted = "; ".join(f"{reason} ({number(count)})" for reason, count in reasons)
        text = (
            f"Ingest set aside {plural(facts['n_rejected'], 'malformed row')}, which "
            f"are not in any number below: {counted}."
        )
        blocks.append(Note(text))
    if facts["n_moved"]:
        text = (
            f"Ingest sorted the source by time: {plural(facts['n_moved'], 'row')} stood after one "
            f"that arrived later, by up to {duration_words(facts['most_late_s'])}."
        )
        blocks.append(Note(text))
    n_rejected = facts["n_rejected"]
    rows = [
        ("Requests", number(n_requests)),
        ("Failed requests", number(n_failed)),
        ("Rows set aside", "not known" if n_rejected is None else number(n_rejected)),
        ("Duration", duration_words(duration_s)),
        ("First request", facts["start_time"] or "date not known"),
        *((f"{key}s", _names(facts, key.lower())) for key in ("LLM", "Service")),
    ]
    blocks.append(Table(("", ""), rows))
    if len(facts["groups"]) > 1:
        blocks.append(_groups_table(facts))
    return Section("Overview", blocks)


def _names(facts: Mapping[str, Any], key: str) -> str:
    names = list(dict.fromkeys(group[key] for group in facts["groups"] if group[key] is not None))
    if not names:
        return "not named"
    more = f" and {len(names) - _MAX_GROUPS} more" if len(names) > _MAX_GROUPS else ""
    return ", ".join(names[:_MAX_GROUPS]) + more


def _groups_table(facts: Mapping[str, Any]) -> Table:
    n_all, groups = facts["n_requests"], facts["groups"]
    columns = {
        "LLM · service": lambda group: group["name"],
        "Requests": lambda group: number(group["n_requests"]),
        "Share": lambda group: percent(group["n_requests"] / n_all),
        "Failed": lambda group: percent(group["n_failed"] / group["n_requests"]),
        "Mean input tokens": lambda group: number(group["mean_input_tokens"]),
        "Mean output tokens": lambda group: number(group["mean_output_tokens"]),
    }
    table, rest = Table.of_rows(groups[:_MAX_GROUPS], columns), groups[_MAX_GROUPS:]
    if not rest:
        return table
    count = sum(group["n_requests"] for group in rest)
    last = (f"{len(rest)} more", number(count), percent(count / n_all), "", "", "")
    return replace(table, rows=[*table.rows, last])


def measure_reuse(trace: TraceFile) -> dict[str, Any] | None:
    """Return what share of the inputs' blocks repeats; None where the source names no blocks.

    A block repeats if an earlier request had it with all blocks before it. `repeated_fraction` is
    of the blocks, `repeated_token_fraction` of all input tokens, both with an unlimited cache; so
    is `within` (used again after `age_s` at most). `by_cache` has both shares by the tokens of a
    cache that drops the least recently used; it holds inputs alone, since ids of the answers are
    not known.
    """
    blocks = read_blocks(trace.path)
    if not len(blocks.ids):
        return None
    # With Numba, which takes a second to load.
    from sextant.simulate.tables import cache_depths

    depth, used_by = cache_depths(blocks.prefixes(), blocks.ends)
    is_repeated, tokens, all_tokens = depth >= 0, blocks.tokens, int(blocks.input_tokens.sum())
    arrival_s, last_s = blocks.arrival_s[blocks.request], float(blocks.arrival_s[-1])
    age_s = arrival_s[is_repeated] - blocks.arrival_s[used_by[is_repeated]]
    n_distinct = int(len(depth) - is_repeated.sum())
    held = 2 ** np.arange(np.ceil(np.log2(n_distinct)) + 1).astype(int)
    order = np.argsort(depth[is_repeated])
    found = np.searchsorted(depth[is_repeated][order], held)
    found_tokens = np.concatenate([[0], np.cumsum(tokens[is_repeated][order])])[found]
    n_repeating = len(np.unique(blocks.request[is_repeated]))
    return {
        "block_tokens": blocks.block_tokens,
        "n_blocks": len(depth),
        "n_distinct_blocks": n_distinct,
        "input_tokens": all_tokens,
        "repeated_fraction": float(is_repeated.mean()),
        "repeated_token_fraction": float(tokens[is_repeated].sum() / all_tokens),
        "repeating_request_fraction": n_repeating / len(blocks.ends),
        "by_cache": {
            "cache_tokens": (held * blocks.block_tokens).tolist(),
            "repeated_fraction": (found / len(depth)).tolist(),
            "repeated_token_fraction": (found_tokens / all_tokens).tolist(),
        },
        "within": [
            {"age_s": most_s, "repeated_fraction": float((age_s <= most_s).sum() / len(depth))}
            for most_s in _AGES_S
            if most_s <= max(last_s, _AGES_S[0])
        ],
    }


def show_reuse(measured: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_reuse` returns."""
    by_cache, most = measured["by_cache"], measured["repeated_fraction"]
    takeaway = (
        f"{percent(most)} of the {number(measured['n_blocks'])} blocks of "
        f"{measured['block_tokens']} input tokens repeat the beginning of an earlier request"
    )
    if most:
        pairs = zip(by_cache["cache_tokens"], by_cache["repeated_fraction"], strict=True)
        enough = next(tokens for tokens, fraction in pairs if fraction >= _MOST * most)
        cache = f"a cache of {_tokens(enough)} tokens finds nine tenths of them or more"
        takeaway += f"; {cache}."
    else:
        takeaway += ": a prefix cache would find nothing."
    blocks: list[Block] = [Headline(takeaway)]
    saved = percent(measured["repeated_token_fraction"])
    text = (
        "The benchmarks of this pipeline run with prefix caching off, and their prompts share "
        f"nothing: a server computes all inputs, also the {saved} of the input tokens that an "
        "unlimited cache would find. sextant load --replay sends prompts that share what these "
        "share, sextant simulate --trace simulates them."
    )
    blocks.append(Note(text))
    blocks.append(_cache_figure(by_cache))
    rows, shown = [], 0.0
    for tokens, fraction, of_tokens in zip(*by_cache.values(), strict=True):
        if fraction > _RISE * shown:
            rows.append((_tokens(tokens), percent(fraction), percent(of_tokens)))
            shown = fraction
    rows.append(("no limit", percent(most), saved))
    blocks.append(Table(("Cache (tokens)", "Blocks found", "Input tokens found"), rows))
    ages = [
        (duration_words(row["age_s"]), percent(row["repeated_fraction"]))
        for row in measured["within"]
    ]
    blocks.append(Table(("Used again within", "Blocks"), ages))
    return Section("Prefix reuse", blocks)


def _tokens(count: int) -> str:
    """Write a number of tokens, of a million on in millions."""
    return number(count) if count < _MILLION else f"{number(count / _MILLION)} million"


def _cache_figure(by_cache: Mapping[str, Any]) -> Chart:
    curves = [
        Curve(name, by_cache["cache_tokens"], 100 * np.array(by_cache[key]))
        for name, key in (
            ("blocks", "repeated_fraction"),
            ("input tokens", "repeated_token_fraction"),
        )
    ]
    panel = Panel("", Axis("Cache (tokens)", is_log=True), Axis("Found (%)", low=0), curves)
    svg = panels_figure([panel], "Prefix reuse by cache size", n_columns=1, height_in=2.4)
    return Chart(
        svg,
        "Share of the inputs' blocks and tokens that a prefix cache of one server finds, which "
        "drops the least recently used. Answers are not in it: their blocks are not known.",
    )


def characterize_trace(
    opened: TraceFile,
    workloads: Sequence[FittedWorkload] = (),
    ingest_report: str | Path | None = None,
    *,
    seed: int,
) -> dict[str, Any]:
    """Characterize a trace, and the workloads fitted to it, as LLM-Pilot and BurstGPT do.

    `seed` is of samples; `ingest_report` says what ingest set aside, by default the
    `.report.json` in the trace's folder, if there is one.

    Returns what JSON can hold, by section: `overview`, `traffic`, `burstiness`, `arrivals`,
    `reliability`, `lengths`, `reuse` (None: not known), `parameters`, `fidelity` (by workload, see
    `measure_fidelity`), in seconds and tokens. Raises InputError if a time stamp is so late that
    nothing can be counted over time.
    """
    facts = overview(opened, ingest_report)
    parameters = known_columns(opened, PARAMETERS)
    columns = [*parameters, *known_columns(opened, (LATENCY,)), "status"]
    n_served = facts["n_requests"] - facts["n_failed"]
    sampled = sample_requests(opened, columns, n_served, seed=seed)
    return {
        "overview": facts,
        "traffic": measure_traffic(opened, facts),
        "burstiness": measure_burstiness(opened, workloads, facts),
        "arrivals": measure_arrival_models(opened, workloads),
        "reliability": measure_reliability(opened, facts),
        "lengths": measure_lengths(opened, sampled),
        "reuse": measure_reuse(opened),
        "parameters": measure_parameters(sampled, n_served, parameters),
        "fidelity": measure_fidelity(opened, workloads),
    }


def write_trace_report(
    trace: str | Path,
    workloads: Sequence[str | Path],
    html_out: str | Path,
    json_out: str | Path,
    *,
    seed: int,
    ingest_report: str | Path | None = None,
) -> dict[str, Any]:
    """Write the report of a trace as a page and as JSON; return what the JSON holds.

    That is what `characterize_trace` returns, `takeaways` and `provenance`; same seed, same bytes.
    Raises InputError as `open_trace`, `open_workloads` and `characterize_trace` do, or if an output
    would replace an input or the other output; then nothing is written.
    """
    opened, judged = open_trace(trace), open_workloads(workloads)
    inputs = {"trace": opened.path}
    for workload in judged:
        inputs |= workload.files
    check_outputs(html_out, json_out, [*inputs.values(), report_path(opened, ingest_report)])
    measured = characterize_trace(opened, judged, ingest_report, seed=seed)
    origin = provenance(inputs, seed=seed)
    facts, arrivals = measured["overview"], measured["arrivals"]
    sections = [
        show_overview(facts),
        show_traffic(measured["traffic"], facts),
        show_burstiness(measured["burstiness"], facts),
        show_arrivals(arrivals),
        show_reliability(measured["reliability"], facts),
        show_lengths(measured["lengths"]),
        *([show_reuse(measured["reuse"])] if measured["reuse"] else []),
        show_parameters(measured["parameters"], measured["lengths"]),
        *(
            show_fidelity(name, own, arrivals["models"][name])
            for name, own in measured["fidelity"].items()
        ),
    ]
    takeaways = {
        section.anchor: next(each.text for each in section.blocks if isinstance(each, Headline))
        for section in sections
    }
    report = {"takeaways": takeaways, **measured, "provenance": origin}
    names = [workload.name for workload in judged]
    whose = f", and its workload{'s' * (len(names) > 1)} {listed(names)}" if names else ""
    subtitle = f"A trace of requests to LLMs{whose}"
    title = f"Trace {id_of(opened.path.stem)}"
    write_page(Document(title, sections, report, subtitle, origin), html_out, json_out)
    return report
