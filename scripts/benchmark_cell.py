"""Measure one cell, unless its results are whole and current.

Inputs: workload, LLM config. Output: the receipt; the results lie beside it.
"""

from sextant.bench.cell import run_job

run_job(
    snakemake.params.definition,
    snakemake.config,
    snakemake.input.workload,
    snakemake.output.receipt,
    dict(snakemake.log.items()),
)
