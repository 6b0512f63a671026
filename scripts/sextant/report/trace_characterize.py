"""The report of a trace, and what it says of the whole, of lengths, parameters, and fidelity."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, jsonable, provenance, read_json, read_provenance
from sextant.base.sheets import file_name, id_of_file_name
from sextant.pages.blocks import Block, Chart, Document, Headline, Note, Section, Table
from sextant.pages.charts import Axis, Curve, Panel, cumulative_curve, panels_figure
from sextant.pages.page import check_outputs, write_page
from sextant.pages.words import duration_words, joined, number, percent, plural, rate_words
from sextant.report import trace_file, trace_traffic
from sextant.report.trace_file import FittedWorkload, explained, query, value_counts
from sextant.trace.trace_format import require_trace
from sextant.workload.fit import cumulative, spearman
from sextant.workload.gamma import Z_95
from sextant.workload.profiles import start_time
from sextant.workload.published import fit_zipf, output_by_input, zipf_probabilities
from sextant.workload.request_model import PARAMETERS
from sextant.workload.shared_blocks import read_shared_blocks

_MAX_GROUPS = 12
_AGES_S = (60, 600, 3600, 86_400)
_MOST = 0.9
_MILLION = 1_000_000
_RISE = 1.02  # what finds so many times as much gets a line of the table
SIDES = {"input": "input_tokens", "output": "output_tokens"}
REACH = 0.02  # what the project sets itself: no distance and no difference of coefficients above
_QUANTILES = {"p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "p99": 0.99}
_MAX_POINTS = 200
_FLAT_THETA = 0.2
_POOR_KS = 0.1  # from this distance on, a drawn fit is visibly another curve than the data
_WEAK = 0.1  # coefficient below which the relation of two parameters cannot be seen in a plot


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
        "groups": trace_file.groups(trace),
    }


def _show_overview(facts: Mapping[str, Any]) -> Section:
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
    if n_groups > trace_file.MAX_SHOWN:
        which = f"the {trace_file.MAX_SHOWN} most frequent of {n_groups} LLMs and services"
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
    drops the least recently used; None where the source names no blocks."""
    blocks = read_shared_blocks(trace)
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


def _show_reuse(measured: Mapping[str, Any]) -> Section:
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


def measure_lengths(trace: Path, sampled: pd.DataFrame) -> dict[str, Any]:
    """Return the lengths of all served requests, and outputs by input of those `sampled`."""
    measured: dict[str, Any] = {side: _side(*value_counts(trace, SIDES[side])) for side in SIDES}
    bins = share = None
    if len(sampled):
        bins = output_by_input(*(sampled[name] for name in SIDES.values()))
        # Unlike a rank correlation, the share that the input's bin explains of the variance of the
        # outputs' ranks shows any relation, not only one that rises or falls throughout.
        place = np.searchsorted(bins["input_lo"], sampled["input_tokens"], side="right")
        share = explained(sampled["output_tokens"].rank().to_numpy(), place)
    return measured | {
        "n_served": measured["input"]["n"],
        "output_by_input": None if bins is None else bins.to_dict(orient="list"),
        "output_rank_by_input_fraction": share and share[0],
    }


def _side(values: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    """Return one side's distribution: mean, quantiles, points of the curve, and the Zipf fit."""
    n = int(weights.sum())
    if n == 0:
        return {"n": 0, "quantiles": None, "cdf": None, "zipf": None, "zipf_reason": "no request"}
    shares = [*_QUANTILES.values()]
    found = np.quantile(values, shares, weights=weights, method="inverted_cdf").tolist()
    fit = reason = None
    try:
        fit = asdict(fit_zipf(values, counts=weights))
    except InputError as error:
        reason = str(error)
    return {
        "n": n,
        "mean": float(np.average(values, weights=weights)),
        "quantiles": {
            "lowest": float(values[0]),
            **dict(zip(_QUANTILES, found, strict=True)),
            "highest": float(values[-1]),
        },
        "cdf": cumulative(values, weights, _MAX_POINTS).to_dict(orient="list"),
        "zipf": fit,
        "zipf_reason": reason,
    }


def _show_lengths(measured: Mapping[str, Any]) -> Section:
    if measured["n_served"] == 0:
        words = "No request succeeded, so there are no lengths to describe."
        return Section("Lengths", [Headline(words)])
    inputs, outputs = (measured[side]["quantiles"] for side in SIDES)
    takeaway = (
        f"The median request has {number(inputs['median'])} tokens in and "
        f"{number(outputs['median'])} out; one in ten has more than {number(inputs['p90'])} in, "
        f"one in ten more than {number(outputs['p90'])} out."
    )
    if inputs["lowest"] == inputs["highest"] and outputs["lowest"] == outputs["highest"]:
        takeaway = (
            f"All requests are alike: {number(inputs['median'])} tokens in, "
            f"{number(outputs['median'])} out."
        )
    rows, notes, panels = [], [], []
    for name in SIDES:
        side, fit = measured[name], measured[name]["zipf"]
        rows.append([f"{name.capitalize()}s", side["mean"], *side["quantiles"].values()])
        notes.append(Note(_zipf_words(name, side)))
        curves = [cumulative_curve("trace", side["cdf"])]
        if fit is not None:
            shares = np.cumsum(zipf_probabilities(fit["theta"], fit["lowest"], fit["highest"]))
            spaced = np.geomspace(fit["lowest"], fit["highest"], _MAX_POINTS)
            values = np.unique(np.rint(spaced).astype(int))
            points = {"value": values, "fraction": shares[values - fit["lowest"]]}
            curves.append(cumulative_curve("bounded Zipf fit", points))
        across = Axis(f"{name.capitalize()} (tokens)", is_log=side["quantiles"]["lowest"] > 0)
        up = Axis("Share of requests up to it", low=0, high=1.02)
        panels.append(Panel(f"{name.capitalize()}s", across, up, curves))
    caption = "Cumulative distributions of the lengths, and the bounded Zipf law that fits best."
    blocks: list[Block] = [
        Headline(takeaway),
        Table(("Tokens", "Mean", *(name.capitalize() for name in inputs)), rows),
        Chart(panels_figure(panels, "Distribution of lengths", is_step=True), caption),
        *notes,
    ]
    if bins := measured["output_by_input"]:
        middle = np.sqrt(np.maximum(bins["input_lo"], 0.5) * np.maximum(bins["input_hi"], 0.5))
        curves = [
            Curve("median, quartiles", middle, bins["median"], bins["p25"], bins["p75"]),
            Curve("mean", middle, bins["mean"]),
            Curve("10th and 90th percentile", middle, bins["p10"]),
            Curve("10th and 90th percentile", middle, bins["p90"]),
        ]
        across = Axis("Input (tokens)", is_log=middle[-1] > 10 * middle[0])
        panel = Panel("", across, Axis("Output (tokens)", low=0), curves)
        svg = panels_figure([panel], "Output lengths by input length", n_columns=1, height_in=2.6)
        share = percent(measured["output_rank_by_input_fraction"])
        caption = (
            f"Output lengths in {len(middle)} bins of the input's length, about equally many "
            f"requests in each. The bin explains {share} of the variance of the outputs' ranks."
        )
        blocks.append(Chart(svg, caption))
    return Section("Lengths", blocks)


def _zipf_words(name: str, side: Mapping[str, Any]) -> str:
    fit = side["zipf"]
    if fit is None:
        return f"Zipf's law is not fitted to the {name}s: {side['zipf_reason']}"
    law = (
        f"A bounded Zipf law fits the {name}s best with θ = {fit['theta']:.3f} (95 % interval "
        f"{fit['theta_lo']:.3f} to {fit['theta_hi']:.3f}; {fit['lowest']} to "
        f"{number(fit['highest'])} tokens, the shortest and longest seen)"
    )
    if fit["ks"] <= _POOR_KS:
        flat = " With θ near 0 it is next to uniform." if abs(fit["theta"]) < _FLAT_THETA else ""
        return f"{law}, and is nowhere more than {percent(fit['ks'])} of the requests off.{flat}"
    return (
        f"{law}, but is off by {percent(fit['ks'])} of the requests at its worst: {name}s "
        "of this trace do not follow Zipf's law; draw from the histogram instead."
    )


def _show_parameters(measured: Mapping[str, Any]) -> Section:
    blocks: list[Block] = [Headline(_parameters_takeaway(measured))]
    names = list(measured["spearman"])
    if measured["n_sampled"] > 0 and len(names) > 1:
        basis = f"{number(measured['n_served'])} requests"
        if measured["n_sampled"] != measured["n_served"]:
            basis = f"a sample of {number(measured['n_sampled'])} of {basis}"
        note = f"Spearman's rank correlation, {basis}; –: constant."
        blocks.append(_matrix("", names, measured["spearman"], note))
    return Section("Parameters", blocks)


def _matrix(
    heading: str, names: list[str], cells: Mapping[str, Mapping[str, float | None]], note: str
) -> Table:
    def text(value: float | None) -> str | None:
        return None if value is None else f"{value:.2f}".replace("-0.00", "0.00")

    rows = [(row, *(text(cells[row][name]) for name in names)) for row in names]
    return Table([heading, *names], rows, note=note)


def _parameters_takeaway(measured: Mapping[str, Any]) -> str:
    names, coefficients = measured["parameters"], measured["spearman"]
    n_requests = measured["n_sampled"]
    pairs = [
        (coefficients[a][b], f"{b} and {a}")
        for place, a in enumerate(names)
        for b in names[:place]
        if coefficients[a][b] is not None
    ]
    if measured["n_served"] == 0:
        return "No request succeeded, so there is nothing to relate."
    if not pairs:
        return "No two parameters vary, so there is no relation between them."
    value, pair = max(pairs, key=lambda pair: abs(pair[0]))
    words = f"{pair} have a rank correlation of {value:.2f}"
    if len(pairs) > 1:
        words = (
            f"Of all pairs of parameters, {pair} have the strongest rank correlation, {value:.2f}"
        )
    # Under independence a coefficient's standard deviation is 1/√(n - 1).
    if abs(value) < Z_95 / np.sqrt(max(n_requests - 1, 1)):
        words += f": no more than chance may show in {plural(n_requests, 'request')}."
    elif abs(value) < _WEAK:
        words += ": one hardly rises or falls with the other."
    else:
        words += f": one {'rises' if value > 0 else 'falls'} as the other rises."
    return words


def measure_fidelity(trace: Path, workloads: Sequence[FittedWorkload]) -> dict[str, dict[str, Any]]:
    """Return by workload its `validation.json`, `caps`, and whether it is of this trace."""
    own = read_provenance(trace).get("inputs_sha256")
    measured = {}
    for workload in workloads:
        fitted = workload.facts.get("inputs_sha256")
        left_out = ("arrivals", "provenance")
        measured[workload.name] = {
            "is_of_other_trace": bool(own) and bool(fitted) and own != fitted,
            "caps": {side: workload.facts.get(f"max_{side}") for side in SIDES.values()},
            **{key: value for key, value in workload.validation.items() if key not in left_out},
        }
    return measured


def _show_fidelity(name: str, measured: Mapping[str, Any]) -> Section:
    blocks: list[Block] = [Headline(f"{name}: {_fidelity_takeaway(measured)}")]
    if measured["is_of_other_trace"]:
        text = (
            "The workload was fitted to another trace than this one: its figures are of that trace."
        )
        blocks.append(Note(text))
    caps = []
    for column, cap in measured["caps"].items():
        n_clipped = measured[f"n_clipped_{column.removesuffix('_tokens')}"]
        share = percent(n_clipped / measured["n_requests"])
        more = f" ({share} of the requests have more)" if n_clipped else ""
        caps += [] if cap is None else [f"{column} at {number(cap)}{more}"]
    if caps:
        text = f"The workload caps {joined(caps)}: it is compared with the trace as capped."
        blocks.append(Note(text))
    rows = [(f"KS distance, {column}", f"{ks:.4f}") for column, ks in measured["ks"].items()]
    for sampler, difference in measured["spearman_difference"].items():
        value = "–" if difference is None else f"{difference:.4f}"
        rows.append((f"Largest difference of a rank correlation, {sampler} sampler", value))
    blocks.append(Table(("Model against trace", "Distance"), rows))
    names = list(measured["ks"])
    if len(names) > 1:
        for side in ("trace", "model"):
            note = f"Spearman's rank correlation in the {side}; –: constant."
            blocks.append(_matrix(side, names, measured[f"spearman_{side}"], note))
    return Section(f"Fidelity of {name}", blocks, key=f"fidelity-{file_name(name)}")


def _fidelity_takeaway(measured: Mapping[str, Any]) -> str:
    ks, worst = max((ks, name) for name, ks in measured["ks"].items())
    sentence = "The distributions of lengths and parameters are the trace's own"
    if ks > 0:
        verdict = "within" if ks <= REACH else "above"
        sentence = (
            f"No distribution of lengths and parameters is more than {percent(ks)} of the requests "
            f"off the trace's ({worst}), {verdict} the {percent(REACH)} aimed at"
        )
    if None in measured["spearman_difference"].values():
        return f"{sentence}; no two parameters vary, so there is no relation to keep."
    joint, independent = (
        "less than 0.001" if difference < 0.001 else f"at most {difference:.3f}"
        for difference in measured["spearman_difference"].values()
    )
    return (
        f"{sentence}; rank correlations are off by {joint} when parameters are drawn jointly, by "
        f"{independent} when each is drawn alone."
    )


def write_trace_report(
    trace: Path,
    workloads: Sequence[str | Path],
    html_out: str | Path,
    json_out: str | Path,
    *,
    seed: int,
    ingest_report: Path | None = None,
) -> dict[str, Any]:
    """Write what a trace, and the workloads fitted to it, are like, as LLM-Pilot and BurstGPT do: a
    page, and JSON, which is returned: by section (`reuse` None: not known), in seconds and tokens,
    `takeaways, provenance`. The same seed, of samples, gives the same bytes. `ingest_report` is by
    default `.report.json` beside the trace. InputError, with nothing written: a time stamp is too
    late to count over time, or an output would replace a file in use."""
    require_trace(trace)
    judged, beside = trace_file.open_workloads(workloads), trace.with_suffix(".report.json")
    inputs = {"trace": trace}
    for own in judged:
        names = ("arrivals.json", "validation.json")
        inputs |= {f"{own.name}/{name}": own.folder / name for name in names}
    check_outputs(html_out, json_out, [*inputs.values(), ingest_report or beside])
    ingest_report = ingest_report or (beside if beside.is_file() else None)
    facts = measure_overview(trace, ingest_report)
    counts = ", ".join(f"count({name}) AS {name}" for name in (*PARAMETERS, "e2e_ms"))
    known = query(trace, f"SELECT {counts} FROM trace").df().iloc[0]
    columns = [name for name, count in known.items() if count]
    n_served = facts["n_requests"] - facts["n_failed"]
    sampled = trace_file.sample_requests(trace, [*columns, "status"], n_served, seed)
    measured: dict[str, Any] = {
        "overview": facts,
        "traffic": trace_traffic.measure_traffic(trace, facts),
        "burstiness": trace_traffic.measure_burstiness(trace, judged, facts),
        "arrivals": trace_traffic.measure_arrival_models(trace, judged),
        "reliability": trace_traffic.measure_reliability(trace, facts),
        "lengths": measure_lengths(trace, sampled),
        "reuse": measure_reuse(trace),
        "parameters": {
            "n_sampled": len(sampled),
            "n_served": n_served,
            "parameters": [name for name in columns if name != "e2e_ms"],
            "spearman": jsonable(spearman(sampled[columns]).to_dict()),
        },
        "fidelity": measure_fidelity(trace, judged),
    }
    origin = provenance(inputs, seed=seed)
    sections = [
        _show_overview(facts),
        trace_traffic.show_traffic(measured["traffic"], facts),
        trace_traffic.show_burstiness(measured["burstiness"], facts),
        trace_traffic.show_arrivals(measured["arrivals"]),
        trace_traffic.show_reliability(measured["reliability"], facts),
        _show_lengths(measured["lengths"]),
        *([_show_reuse(measured["reuse"])] if measured["reuse"] else []),
        _show_parameters(measured["parameters"]),
        *(_show_fidelity(*each) for each in measured["fidelity"].items()),
    ]
    takeaways = {
        section.anchor: next(each.text for each in section.blocks if isinstance(each, Headline))
        for section in sections
    }
    report = {"takeaways": takeaways, **measured, "provenance": origin}
    subtitle = "A trace of requests to LLMs"
    if judged:
        ending = "s" * (len(judged) > 1)
        subtitle += f", and its workload{ending} {joined([own.name for own in judged])}"
    title = f"Trace {id_of_file_name(trace.stem)}"
    write_page(Document(title, sections, report, subtitle, origin), html_out, json_out)
    return report
