"""The section Fidelity of a trace's page: how far a fitted workload is off its trace."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sextant.base.files import read_provenance
from sextant.base.sheets import file_name
from sextant.pages.blocks import Block, Headline, Note, Section, Table
from sextant.pages.words import joined, number, percent
from sextant.report.trace_file import FittedWorkload
from sextant.report.trace_lengths import SIDES
from sextant.report.trace_parameters import correlation_table

REACH = 0.02  # the project's own limit of a distance and of a difference of coefficients


def measure_fidelity(trace: Path, workloads: Sequence[FittedWorkload]) -> dict[str, dict[str, Any]]:
    """Return by workload its `validation.json`, `caps`, and whether it is of this trace."""
    trace_sha256 = read_provenance(trace).get("inputs_sha256")
    measured = {}
    for workload in workloads:
        fitted = workload.facts.get("inputs_sha256")
        left_out = ("arrivals", "provenance")
        measured[workload.name] = {
            "is_of_other_trace": bool(trace_sha256) and bool(fitted) and trace_sha256 != fitted,
            "caps": {side: workload.facts.get(f"max_{side}") for side in SIDES.values()},
            **{key: value for key, value in workload.validation.items() if key not in left_out},
        }
    return measured


def show_fidelity(name: str, measured: Mapping[str, Any]) -> Section:
    """Return the section of one workload of what `measure_fidelity` returns."""
    ks, worst = max((ks, column) for column, ks in measured["ks"].items())
    takeaway = "The distributions of lengths and parameters are the trace's own"
    if ks > 0:
        verdict = "within" if ks <= REACH else "above"
        takeaway = (
            f"No distribution of lengths and parameters is more than {percent(ks)} of the requests "
            f"off the trace's ({worst}), {verdict} the {percent(REACH)} aimed at"
        )
    differences = measured["spearman_difference"]
    relations = "no two parameters vary, so there is no relation to keep"
    if None not in differences.values():
        joint, independent = (
            "less than 0.001" if difference < 0.001 else f"at most {difference:.3f}"
            for difference in differences.values()
        )
        relations = (
            f"rank correlations are off by {joint} when parameters are drawn jointly, by "
            f"{independent} when each is drawn alone"
        )

    blocks: list[Block] = [Headline(f"{name}: {takeaway}; {relations}.")]
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
    for sampler, difference in differences.items():
        value = "–" if difference is None else f"{difference:.4f}"
        rows.append((f"Largest difference of a rank correlation, {sampler} sampler", value))
    blocks.append(Table(("Model against trace", "Distance"), rows))
    names = list(measured["ks"])
    if len(names) > 1:
        for side in ("trace", "model"):
            note = f"Spearman's rank correlation in the {side}; –: constant."
            blocks.append(correlation_table(side, names, measured[f"spearman_{side}"], note))
    return Section(f"Fidelity of {name}", blocks, key=f"fidelity-{file_name(name)}")
