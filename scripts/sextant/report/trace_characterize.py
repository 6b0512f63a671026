"""The page of a trace and of the workloads fitted to it: its sections, put together.

Each section is a file, with a `measure_…` (what the JSON has) and a `show_…` (what the page says).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sextant.base.files import provenance
from sextant.base.sheets import id_of_file_name
from sextant.pages.blocks import Block, Document, Headline
from sextant.pages.page import check_outputs, write_page
from sextant.pages.words import joined
from sextant.report.trace_arrivals import measure_arrival_models, show_arrivals
from sextant.report.trace_burstiness import measure_burstiness, show_burstiness
from sextant.report.trace_fidelity import measure_fidelity, show_fidelity
from sextant.report.trace_file import FittedWorkload, open_workloads, query, sample_requests
from sextant.report.trace_lengths import measure_lengths, show_lengths
from sextant.report.trace_overview import measure_overview, show_overview
from sextant.report.trace_parameters import measure_parameters, show_parameters
from sextant.report.trace_reliability import measure_reliability, show_reliability
from sextant.report.trace_reuse import measure_reuse, show_reuse
from sextant.report.trace_traffic import measure_traffic, show_traffic
from sextant.trace.choice import ALL_REQUESTS, TraceChoice, chosen_requests
from sextant.trace.trace_format import require_trace
from sextant.workload.request_model import PARAMETERS


def write_trace_report(
    trace: Path,
    workloads: Sequence[str | Path],
    html_out: str | Path,
    json_out: str | Path,
    *,
    seed: int,
    ingest_report: Path | None = None,
    choice: TraceChoice = ALL_REQUESTS,
) -> dict[str, Any]:
    """Write a page about a trace and the workloads fitted to it, and the page's figures as JSON.

    It shows what LLM-Pilot and BurstGPT show of their traces. The JSON, which is returned, has the
    figures by section (`reuse` is None where the trace names no blocks), in seconds and tokens,
    with `takeaways` and `provenance`. `seed` is of samples: the same seed gives the same bytes.
    `ingest_report` is by default `.report.json` beside the trace. `choice` are the requests of one
    LLM or service alone. InputError, with nothing written:
    a time stamp is too late to count over time, or an output would replace a file in use.
    """
    require_trace(trace)
    fitted_workloads = open_workloads(workloads)
    default_report = trace.with_suffix(".report.json")
    inputs = {"trace": trace}
    for workload in fitted_workloads:
        for name in ("arrivals.json", "validation.json"):
            inputs[f"{workload.name}/{name}"] = workload.folder / name
    check_outputs(html_out, json_out, [*inputs.values(), ingest_report or default_report])
    if ingest_report is None and default_report.is_file():
        ingest_report = default_report

    with chosen_requests(trace, choice) as part:
        measured = _measure(part, fitted_workloads, ingest_report, seed)
    overview = measured["overview"]
    sections = [
        show_overview(overview),
        show_traffic(measured["traffic"], overview),
        show_burstiness(measured["burstiness"], overview),
        show_arrivals(measured["arrivals"]),
        show_reliability(measured["reliability"], overview),
        show_lengths(measured["lengths"]),
        *([show_reuse(measured["reuse"])] if measured["reuse"] else []),
        show_parameters(measured["parameters"]),
        *(show_fidelity(name, figures) for name, figures in measured["fidelity"].items()),
    ]
    takeaways = {
        section.anchor: next(it.text for it in section.blocks if isinstance(it, Headline))
        for section in sections
    }
    origin = provenance(inputs, seed=seed, **choice.facts)
    report = {"takeaways": takeaways, **measured, "provenance": origin}

    subtitle = "A trace of requests to LLMs"
    if choice.values:
        subtitle += (
            f", {joined([f'{name} {value}' for name, value in choice.values.items()])} alone"
        )
    if fitted_workloads:
        ending = "s" * (len(fitted_workloads) > 1)
        subtitle += f", and its workload{ending} {joined([it.name for it in fitted_workloads])}"
    title = f"Trace {id_of_file_name(trace.stem)}"
    first, *others = sections
    finding = takeaways[first.anchor]
    overview_blocks = [it for it in first.blocks if it != Headline(finding)]
    blocks: list[Block] = [Headline(finding), replace(first, blocks=overview_blocks), *others]
    write_page(Document(title, blocks, report, subtitle, origin), html_out, json_out)
    return report


def _measure(
    trace: Path, workloads: Sequence[FittedWorkload], ingest_report: Path | None, seed: int
) -> dict[str, Any]:
    """Return the figures of all sections."""
    overview = measure_overview(trace, ingest_report)
    counts = ", ".join(f"count({name}) AS {name}" for name in (*PARAMETERS, "e2e_ms"))
    n_values = query(trace, f"SELECT {counts} FROM trace").df().iloc[0]
    columns = [name for name, count in n_values.items() if count]
    n_served = overview["n_requests"] - overview["n_failed"]
    sampled = sample_requests(trace, [*columns, "status"], n_served, seed)
    return {
        "overview": overview,
        "traffic": measure_traffic(trace, overview),
        "burstiness": measure_burstiness(trace, workloads, overview),
        "arrivals": measure_arrival_models(trace, workloads),
        "reliability": measure_reliability(trace, overview),
        "lengths": measure_lengths(trace, sampled),
        "reuse": measure_reuse(trace),
        "parameters": measure_parameters(sampled, columns, n_served),
        "fidelity": measure_fidelity(trace, workloads),
    }
