"""Find the replicas that keep an SLO under a trace or at a rate: a table, a page, JSON."""

from sextant.base.job_log import job_log
from sextant.capacity.files import size_files
from sextant.experiment.loading import load_experiment

with job_log(snakemake.log[0]):
    experiment = load_experiment(snakemake.config)
    names = ("point", "feasibility", "trace", "requests")
    size_files(
        {name: path for name, path in snakemake.input.items() if name in names},
        experiment,
        experiment.capacity_slos[snakemake.params.slo_id],
        dict(snakemake.output.items()),
        source=snakemake.wildcards.source,
        decision=snakemake.params.decision,
        seed=snakemake.params.seed,
    )
