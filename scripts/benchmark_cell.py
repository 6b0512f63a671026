"""Measure one cell, unless its results are whole and current.

Inputs: workload, LLM config. Output: the receipt; the results lie beside it.
"""

from sextant.bench.cell import run_job
from sextant.experiment.servers import SIMULATED

measure = None
if snakemake.config["engine"].get("name") == SIMULATED:
    from sextant.plan.rehearsal import rehearsal_of

    measure = rehearsal_of(snakemake.config, snakemake.params.definition["gpu_profile_id"])

run_job(
    snakemake.params.definition,
    snakemake.config,
    snakemake.input.workload,
    snakemake.output.receipt,
    dict(snakemake.log.items()),
    measure,
)
