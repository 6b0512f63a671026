"""Fit a workload to a trace, or make one from a use case that ships or of one length."""

from pathlib import Path

from sextant.base.job_log import job_log
from sextant.experiment.experiment import choice_of
from sextant.trace.choice import mixture_notes
from sextant.workload.fit import (
    WorkloadFiles,
    fit_workload,
    write_fixed_lengths,
    write_use_case,
)
from sextant.workload.request_model import N_BINS, LengthCaps

with job_log(snakemake.log[0]) as log:
    row, outputs = snakemake.params.row, snakemake.output
    files = WorkloadFiles(*map(Path, (outputs.requests, outputs.arrivals, outputs.validation)))
    caps = LengthCaps(
        max_input_tokens=row["max_input_tokens"], max_output_tokens=row["max_output_tokens"]
    )
    if "use_case" in row:
        write_use_case(row["use_case"], files, caps=caps)
    elif "input_tokens" in row:
        write_fixed_lengths(row["input_tokens"], row["output_tokens"], files, caps=caps)
    else:
        figures = fit_workload(
            snakemake.input.trace,
            files,
            caps=caps,
            n_bins=row.get("n_bins", N_BINS),
            seed=snakemake.params.seed,
            choice=choice_of(row),
        )
        for note in mixture_notes(snakemake.input.trace, choice_of(row)):
            log.warning(note)
        counts = [figures[name] for name in ("n_requests", "n_clipped_input", "n_clipped_output")]
        said = "%s: of %d requests the caps cut %d inputs and %d outputs"
        log.info(said, row["workload_id"], *counts)
        if 2 * max(counts[1:]) > counts[0]:
            log.warning(
                "%s: most requests are cut, so answers are for shorter ones than the trace has. "
                "Fix: raise max_input_tokens and max_output_tokens, or take it for a demonstration",
                row["workload_id"],
            )
