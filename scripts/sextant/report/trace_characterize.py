"""All that a report says of a trace: as a dictionary, and as a page with its sections."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sextant.base.files import MAKE_TRACE_AGAIN, provenance, read_json
from sextant.base.sheets import id_of
from sextant.pages.blocks import (
    Block,
    Document,
    Headline,
    Note,
    Section,
    Table,
    duration_words,
    listed,
    number,
    percent,
    plural,
    rate_words,
)
from sextant.pages.page import check_outputs, write_page
from sextant.report import trace_burstiness, trace_lengths, trace_traffic
from sextant.report.trace_file import (
    MAX_SHOWN,
    FittedWorkload,
    groups,
    open_workloads,
    query,
    sample_requests,
)
from sextant.trace.trace_format import require_trace
from sextant.workload.profiles import start_time
from sextant.workload.request_model import PARAMETERS
from sextant.workload.shared_blocks import read_blocks

_MAX_GROUPS = 12
_AGES_S = (60, 600, 3600, 86_400)
_MOST = 0.9
_MILLION = 1_000_000
_RISE = 1.02  # what finds so many times as much gets a line of the table


def measure_overview(trace: Path, ingest_report: Path | None) -> dict[str, Any]:
    """Return the counts of a trace, and what ingest set aside by its report, if there is one."""
    ((n_rows, n_failed, duration_s),) = query(
        trace,
        """SELECT count(*), count(*) FILTER (status = 'failed'), max(arrival_s) - min(arrival_s)
        FROM trace""",
    ).fetchall()
    ingested = read_json(ingest_report, fix=MAKE_TRACE_AGAIN) if ingest_report else {}
    start = start_time(trace)
    return {
        "trace": trace.name,
        "n_requests": n_rows,
        "n_failed": n_failed,
        "duration_s": duration_s,
        "start_time": None if start is None else start.isoformat(sep=" "),
        "n_rejected": ingested.get("n_rejected"),
        "rejected_by_reason": ingested.get("n_rejected_by_reason", {}),
        "n_moved": ingested.get("n_moved"),
        "most_late_s": ingested.get("most_late_s"),
        "groups": groups(trace),
    }


def show_overview(facts: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_overview` returns."""
    n_all, n_failed, n_rejected = (facts[name] for name in ("n_requests", "n_failed", "n_rejected"))
    takeaway = f"The trace has {plural(n_all, 'request')}, all at one moment: no rate is known."
    if facts["duration_s"]:
        rate = rate_words((n_all - 1) / facts["duration_s"])
        failed = "records no failure"
        if n_failed:
            failed = f"{number(n_failed)} of them failed ({percent(n_failed / n_all)})"
        takeaway = (
            f"The trace has {plural(n_all, 'request')} in {duration_words(facts['duration_s'])}, "
            f"{rate} on average, and {failed}."
        )
    notes = [f"The first request came at {facts['start_time']}."]
    if facts["start_time"] is None:
        notes = [
            "The source gives no date: hours and days are counted from the first request, and "
            "need not be those of a clock."
        ]
    if n_rejected is None:
        notes.append("No report of the ingest was given: rows set aside are not known.")
    elif n_rejected:
        reasons = sorted(facts["rejected_by_reason"].items(), key=lambda item: (-item[1], item[0]))
        counted = "; ".join(f"{reason} ({number(count)})" for reason, count in reasons)
        notes.append(
            f"Ingest set aside {plural(n_rejected, 'malformed row')}, which are not in any number "
            f"below: {counted}."
        )
    if facts["n_moved"]:
        notes.append(
            f"Ingest sorted the source by time: {plural(facts['n_moved'], 'row')} stood after one "
            f"that arrived later, by up to {duration_words(facts['most_late_s'])}."
        )
    n_groups, lengths = len(facts["groups"]), ("mean_input_tokens", "mean_output_tokens")
    if n_groups > MAX_SHOWN:
        which = f"the {MAX_SHOWN} most frequent of {n_groups} LLMs and services"
        notes.append(f"Traffic, burstiness and reliability are of {which}.")
    rows = [
        [
            group["name"],
            number(group["n_requests"]),
            percent(group["n_requests"] / n_all),
            percent(group["n_failed"] / group["n_requests"]),
            *(number(group[name]) for name in lengths),
        ]
        for group in facts["groups"][:_MAX_GROUPS]
    ]
    if rest := facts["groups"][_MAX_GROUPS:]:
        count = sum(group["n_requests"] for group in rest)
        rows.append([f"{len(rest)} more", number(count), percent(count / n_all), "", "", ""])
    header = ("LLM · service", "Requests", "Share", "Failed", "Mean input tokens")
    table = Table((*header, "Mean output tokens"), rows)
    return Section("Overview", [Headline(takeaway), *map(Note, notes), table])


def measure_reuse(trace: Path) -> dict[str, Any] | None:
    """Return what share of the inputs' blocks and tokens repeats, with all blocks before it, in an
    unlimited cache, `within` ages, and `by_cache` of so many tokens, which holds inputs alone and
    drops the least recently used; None where the source names no blocks.
    """
    blocks = read_blocks(trace)
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
    most, saved = measured["repeated_fraction"], percent(measured["repeated_token_fraction"])
    takeaway = (
        f"{percent(most)} of the {number(measured['n_blocks'])} blocks of "
        f"{measured['block_tokens']} input tokens repeat the beginning of an earlier request"
    )
    rows, shown, enough = [], 0.0, ""
    for cache_tokens, fraction, of_tokens in zip(*measured["by_cache"].values(), strict=True):
        is_large = cache_tokens >= _MILLION
        size = f"{number(cache_tokens / _MILLION)} million" if is_large else number(cache_tokens)
        if fraction >= _MOST * most:
            enough = enough or size
        if fraction > _RISE * shown:
            rows.append((size, percent(fraction), percent(of_tokens)))
            shown = fraction
    rest = f"; a cache of {enough} tokens finds nine tenths of them or more."
    takeaway += rest if most else ": a prefix cache would find nothing."
    text = (
        "The benchmarks of this pipeline run with prefix caching off, and their prompts share "
        f"nothing: a server computes all inputs, also the {saved} of the input tokens that an "
        "unlimited cache would find. sextant load --replay sends prompts that share what these "
        "share, sextant simulate --trace simulates them. The cache below is one server's, drops "
        "what was used longest ago, and holds no answers, whose blocks are not known."
    )
    rows.append(("no limit", percent(most), saved))
    ages = [
        (duration_words(row["age_s"]), percent(row["repeated_fraction"]))
        for row in measured["within"]
    ]
    blocks: list[Block] = [
        Headline(takeaway),
        Note(text),
        Table(("Cache (tokens)", "Blocks found", "Input tokens found"), rows),
        Table(("Used again within", "Blocks"), ages),
    ]
    return Section("Prefix reuse", blocks)


def characterize_trace(
    trace: Path,
    workloads: Sequence[FittedWorkload],
    ingest_report: Path | None,
    *,
    seed: int,
) -> dict[str, Any]:
    """Characterize a trace, and the workloads fitted to it, as LLM-Pilot and BurstGPT do: what JSON
    can hold, by section (`reuse` None: not known), in seconds and tokens. `seed` is of samples.
    InputError if a time stamp is too late to count over time.
    """
    facts = measure_overview(trace, ingest_report)
    names = [*PARAMETERS, "e2e_ms"]
    counts = query(trace, f"SELECT {', '.join(f'count({name})' for name in names)} FROM trace")
    (known,) = counts.fetchall()
    columns = [name for name, count in zip(names, known, strict=True) if count]
    n_served = facts["n_requests"] - facts["n_failed"]
    sampled = sample_requests(trace, [*columns, "status"], n_served, seed=seed)
    parameters = [name for name in columns if name != "e2e_ms"]
    return {
        "overview": facts,
        "traffic": trace_traffic.measure_traffic(trace, facts),
        "burstiness": trace_burstiness.measure_burstiness(trace, workloads, facts),
        "arrivals": trace_burstiness.measure_arrival_models(trace, workloads),
        "reliability": trace_traffic.measure_reliability(trace, facts),
        "lengths": trace_lengths.measure_lengths(trace, sampled),
        "reuse": measure_reuse(trace),
        "parameters": trace_lengths.measure_parameters(sampled, n_served, parameters),
        "fidelity": trace_lengths.measure_fidelity(trace, workloads),
    }


def write_trace_report(
    trace: Path,
    workloads: Sequence[str | Path],
    html_out: str | Path,
    json_out: str | Path,
    *,
    seed: int,
    ingest_report: Path | None = None,
) -> dict[str, Any]:
    """Write the report of a trace as a page and as JSON, which is returned: `characterize_trace`,
    `takeaways, provenance`; same seed, same bytes. `ingest_report` is by default `.report.json`
    beside the trace. InputError, with nothing written, also if an output would replace a file in
    use.
    """
    require_trace(trace)
    judged, beside = open_workloads(workloads), trace.with_suffix(".report.json")
    inputs = {"trace": trace}
    for own in judged:
        names = ("arrivals.json", "validation.json")
        inputs |= {f"{own.name}/{name}": own.folder / name for name in names}
    check_outputs(html_out, json_out, [*inputs.values(), ingest_report or beside])
    ingest_report = ingest_report or (beside if beside.is_file() else None)
    measured = characterize_trace(trace, judged, ingest_report, seed=seed)
    origin, facts = provenance(inputs, seed=seed), measured["overview"]
    sections = [
        show_overview(facts),
        trace_traffic.show_traffic(measured["traffic"], facts),
        trace_burstiness.show_burstiness(measured["burstiness"], facts),
        trace_burstiness.show_arrivals(measured["arrivals"]),
        trace_traffic.show_reliability(measured["reliability"], facts),
        trace_lengths.show_lengths(measured["lengths"]),
        *([show_reuse(measured["reuse"])] if measured["reuse"] else []),
        trace_lengths.show_parameters(measured["parameters"]),
        *(trace_lengths.show_fidelity(*each) for each in measured["fidelity"].items()),
    ]
    takeaways = {
        section.anchor: next(each.text for each in section.blocks if isinstance(each, Headline))
        for section in sections
    }
    report = {"takeaways": takeaways, **measured, "provenance": origin}
    subtitle = "A trace of requests to LLMs"
    if judged:
        ending = "s" * (len(judged) > 1)
        subtitle += f", and its workload{ending} {listed([own.name for own in judged])}"
    title = f"Trace {id_of(trace.stem)}"
    write_page(Document(title, sections, report, subtitle, origin), html_out, json_out)
    return report
