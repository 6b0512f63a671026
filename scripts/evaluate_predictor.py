"""Judge a predictor on held-out LLMs and recommend for all.

Inputs: points, feasibility, sheets. Outputs: tables prediction, candidate, recommendation, score.
"""

from sextant.decide.evaluation_job import evaluate_files
from sextant.experiment.loading import load_experiment
from sextant.processes.job_log import job_log

with job_log(snakemake.log[0]):
    experiment = load_experiment(snakemake.config)
    evaluate_files(
        snakemake.input.point,
        snakemake.input.feasibility,
        experiment,
        snakemake.params.decision,
        snakemake.wildcards.predictor,
        snakemake.wildcards.source,
        snakemake.params.seed,
        snakemake.params.memory_utilization,
        snakemake.threads,
        dict(snakemake.output.items()),
    )
