"""Judge a predictor on held-out LLMs and recommend for all, by points, feasibility and sheets."""

from sextant.base.job_log import job_log
from sextant.experiment.loading import load_experiment
from sextant.judge.files import evaluate_files, read_task

with job_log(snakemake.log[0]):
    experiment = load_experiment(snakemake.config)
    inputs = {name: snakemake.input[name] for name in ("point", "feasibility", "library")}
    task = read_task(
        inputs,
        experiment,
        snakemake.params.decision,
        snakemake.wildcards.source,
        snakemake.params.memory_utilization,
    )
    evaluate_files(
        inputs,
        task,
        [*experiment.point_slos.values()],
        snakemake.wildcards.predictor,
        snakemake.params.seed,
        snakemake.threads,
        dict(snakemake.output.items()),
    )
