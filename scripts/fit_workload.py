"""Fit a workload to a trace.

Input: a normalised trace. Outputs: request model, arrival model, fidelity.
"""

from sextant.logs import job_log
from sextant.workload.fit import fit_workload
from sextant.workload.request_model import N_BINS

with job_log(snakemake.log[0]) as log:
    row = snakemake.params.row
    figures = fit_workload(
        snakemake.input.trace,
        snakemake.output.requests,
        snakemake.output.arrivals,
        snakemake.output.validation,
        max_input_tokens=row["max_input_tokens"],
        max_output_tokens=row["max_output_tokens"],
        n_bins=row.get("n_bins", N_BINS),
        seed=snakemake.params.seed,
    )
    log.info(
        "%s: of %d requests the caps touch %d inputs and %d outputs",
        row["workload_id"],
        figures["n_requests"],
        figures["n_clipped_input"],
        figures["n_clipped_output"],
    )
