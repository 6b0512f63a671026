"""Measure one cell. Kept tiny: an edit here makes measurements stale.

Inputs: workload, LLM config. Outputs: the benchmark contract's files.
"""

from sextant.bench.cell import run_job

run_job(
    snakemake.params.definition,
    snakemake.config,
    snakemake.input.workload,
    dict(snakemake.output.items()),
    dict(snakemake.log.items()),
)
