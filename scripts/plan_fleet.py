"""Give the devices of a cluster to demands at the lowest cost: a table, a page, JSON."""

from sextant.base.job_log import job_log
from sextant.experiment.loading import load_experiment
from sextant.fleet.document import plan_files

with job_log(snakemake.log[0]):
    plan_files(
        dict(snakemake.input.items()),
        load_experiment(snakemake.config),
        dict(snakemake.output.items()),
        source=snakemake.wildcards.source,
        decision=snakemake.params.decision,
        seed=snakemake.params.seed,
        gpus=snakemake.config["gpus"],
    )
