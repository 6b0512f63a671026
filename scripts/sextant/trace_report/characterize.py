"""All that a report says of a trace, as a dictionary and as a page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sextant.files import provenance, write_json
from sextant.trace_report.burstiness import measure_burstiness, show_burstiness
from sextant.trace_report.fidelity import measure_fidelity, show_fidelity
from sextant.trace_report.lengths import measure_lengths, show_lengths
from sextant.trace_report.overview import show_overview
from sextant.trace_report.page import write_page
from sextant.trace_report.parameters import LATENCY, measure_parameters, show_parameters
from sextant.trace_report.read import known_columns, open_trace, overview, sample_requests
from sextant.trace_report.reliability import measure_reliability, show_reliability
from sextant.trace_report.section import Section
from sextant.trace_report.traffic import measure_traffic, show_traffic
from sextant.workload.request_model import PARAMETERS


def characterize_trace(
    trace: str | Path,
    workload: str | Path | None = None,
    *,
    seed: int,
    ingest_report: str | Path | None = None,
) -> dict[str, Any]:
    """Characterize a trace, and the workload fitted to it, as LLM-Pilot and BurstGPT do.

    Args:
        trace: Parquet in the trace contract.
        workload: folder of the workload that was fitted to it; without one, nothing is said of
            a model.
        seed: of samples, of draws from the model, and of tests.
        ingest_report: what ingest said of the rows it set aside; by default the `.report.json`
            beside the trace, if there is one.

    Returns:
        What JSON can hold, by section: `overview`, `traffic`, `burstiness`, `reliability`,
        `lengths`, `parameters`, `fidelity` (None without a workload). Durations are in seconds,
        lengths in tokens.

    Raises:
        InputError: no trace, no row in it, a column of the contract is missing, or the workload
            is incomplete.
    """
    opened = open_trace(trace)
    folder = None if workload is None else Path(workload)
    facts = overview(opened, ingest_report)
    parameters = known_columns(opened, PARAMETERS)
    columns = [*parameters, *known_columns(opened, (LATENCY,)), "status"]
    n_served = facts["n_requests"] - facts["n_failed"]
    sampled = sample_requests(opened, columns, n_served, seed=seed)
    return {
        "overview": facts,
        "traffic": measure_traffic(opened, facts),
        "burstiness": measure_burstiness(opened, folder, facts, seed=seed),
        "reliability": measure_reliability(opened, facts),
        "lengths": measure_lengths(opened, sampled, seed=seed),
        "parameters": measure_parameters(sampled, n_served, parameters, seed=seed),
        "fidelity": None
        if folder is None
        else measure_fidelity(opened, folder, sampled, seed=seed),
    }


def write_trace_report(
    trace: str | Path,
    workload: str | Path | None,
    html_out: str | Path,
    json_out: str | Path,
    *,
    seed: int,
    ingest_report: str | Path | None = None,
) -> dict[str, Any]:
    """Write the report of a trace as one page, and as JSON; return what the JSON holds.

    Args:
        trace: as in `characterize_trace`, as are `workload`, `seed` and `ingest_report`.
        workload: folder of the workload, or None.
        html_out: the page, one file that refers to no other.
        json_out: what `characterize_trace` returns, the sentences to take away, and provenance.
        seed: same seed, same bytes.
        ingest_report: report of the ingest.

    Raises:
        InputError: as `characterize_trace`.
    """
    found = characterize_trace(trace, workload, seed=seed, ingest_report=ingest_report)
    inputs = {"trace": trace}
    if workload is not None:
        inputs |= {name: Path(workload) / name for name in ("requests.parquet", "arrivals.json")}
    origin = provenance(inputs, seed=seed)
    sections = _sections(found)
    takeaways = {section.key: section.takeaway for section in sections}
    report = {"takeaways": takeaways, **found, "provenance": origin}
    write_json(json_out, report)
    name = Path(trace).stem
    subtitle = "A trace of requests to LLMs" + ("" if workload is None else ", and its workload")
    write_page(html_out, f"Trace {name}", subtitle, sections, origin)
    return report


def _sections(found: Mapping[str, Any]) -> list[Section]:
    facts = found["overview"]
    sections = [
        show_overview(facts),
        show_traffic(found["traffic"], facts),
        show_burstiness(found["burstiness"], facts),
        show_reliability(found["reliability"], facts),
        show_lengths(found["lengths"]),
        show_parameters(found["parameters"], found["lengths"]),
    ]
    return [*sections, show_fidelity(found["fidelity"])] if found["fidelity"] else sections
