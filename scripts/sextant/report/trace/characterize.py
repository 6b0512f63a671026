"""All that a report says of a trace, as a dictionary and as a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sextant.base.files import provenance
from sextant.base.ids import id_of
from sextant.pages.sections import Section
from sextant.pages.wording import listed
from sextant.pages.write import check_outputs, render_sections, write_page
from sextant.report.trace.arrivals import measure_arrival_models, show_arrivals
from sextant.report.trace.burstiness import measure_burstiness, show_burstiness
from sextant.report.trace.fidelity import measure_fidelity, show_fidelity
from sextant.report.trace.fitted_workloads import Fitted, open_workloads
from sextant.report.trace.lengths import measure_lengths, show_lengths
from sextant.report.trace.overview import show_overview
from sextant.report.trace.parameters import LATENCY, measure_parameters, show_parameters
from sextant.report.trace.reliability import measure_reliability, show_reliability
from sextant.report.trace.reuse import measure_reuse, show_reuse
from sextant.report.trace.trace_file import (
    TraceFile,
    check_span,
    known_columns,
    open_trace,
    overview,
    report_path,
    sample_requests,
)
from sextant.report.trace.traffic import measure_traffic, show_traffic
from sextant.workload.request_model import PARAMETERS


def characterize_trace(
    trace: str | Path,
    workloads: Sequence[str | Path] = (),
    *,
    seed: int,
    ingest_report: str | Path | None = None,
) -> dict[str, Any]:
    """Characterize a trace, and the workloads fitted to it, as LLM-Pilot and BurstGPT do.

    Without a workload's folder, the model that a fit makes by default is fitted here and judged.
    `seed` is of samples, draws and tests; `ingest_report` says what ingest set aside, by default
    the `.report.json` beside the trace, if there is one.

    Returns what JSON can hold, by section: `overview`, `traffic`, `burstiness`, `arrivals`,
    `reliability`, `lengths`, `reuse` (None: not known), `parameters`, `fidelity` (by workload, see
    `measure_fidelity`), in seconds and tokens.

    Raises InputError if the file is not a trace or has no row, if a time stamp is so late that
    nothing can be counted over time, or if a workload is incomplete, of the name of another, or
    models what the trace does not have.
    """
    return _characterize(open_trace(trace), open_workloads(workloads), ingest_report, seed)


def _characterize(
    opened: TraceFile, workloads: Sequence[Fitted], ingest_report: str | Path | None, seed: int
) -> dict[str, Any]:
    facts = overview(opened, ingest_report)
    check_span(opened, facts)
    parameters = known_columns(opened, PARAMETERS)
    columns = [*parameters, *known_columns(opened, (LATENCY,)), "status"]
    n_served = facts["n_requests"] - facts["n_failed"]
    sampled = sample_requests(opened, columns, n_served, seed=seed)
    return {
        "overview": facts,
        "traffic": measure_traffic(opened, facts),
        "burstiness": measure_burstiness(opened, workloads, facts, seed=seed),
        "arrivals": measure_arrival_models(opened, workloads, seed=seed),
        "reliability": measure_reliability(opened, facts),
        "lengths": measure_lengths(opened, sampled, seed=seed),
        "reuse": measure_reuse(opened),
        "parameters": measure_parameters(sampled, n_served, parameters, seed=seed),
        "fidelity": measure_fidelity(opened, workloads, sampled, seed=seed),
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
    Raises InputError as `characterize_trace` does, or if an output would replace an input or the
    other output; then nothing is written.
    """
    opened, judged = open_trace(trace), open_workloads(workloads)
    inputs = {"trace": opened.path}
    for workload in judged:
        inputs |= workload.files
    check_outputs(html_out, json_out, [*inputs.values(), report_path(opened, ingest_report)])
    found = _characterize(opened, judged, ingest_report, seed)
    origin = provenance(inputs, seed=seed)
    sections = _sections(found)
    takeaways = {section.key: section.takeaway for section in sections}
    report = {"takeaways": takeaways, **found, "provenance": origin}
    names = [workload.name for workload in judged]
    whose = f", and its workload{'s' * (len(names) > 1)} {listed(names)}" if names else ""
    subtitle = f"A trace of requests to LLMs{whose}"
    html = render_sections(f"Trace {id_of(opened.path.stem)}", subtitle, sections, origin)
    write_page(html_out, html, json_out, report)
    return report


def _sections(found: Mapping[str, Any]) -> list[Section]:
    facts = found["overview"]
    sections = [
        show_overview(facts),
        show_traffic(found["traffic"], facts),
        show_burstiness(found["burstiness"], facts),
        show_arrivals(found["arrivals"]),
        show_reliability(found["reliability"], facts),
        show_lengths(found["lengths"]),
        *([show_reuse(found["reuse"], facts)] if found["reuse"] else []),
        show_parameters(found["parameters"], found["lengths"]),
    ]
    arrivals = found["arrivals"]["models"]
    return [
        *sections,
        *(show_fidelity(name, own, arrivals.get(name)) for name, own in found["fidelity"].items()),
    ]
