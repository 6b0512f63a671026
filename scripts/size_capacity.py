"""Find the replicas that keep an SLO under the traffic of a trace, by simulation.

Inputs: points, feasibility, the trace, sheets. Outputs: table capacity, a page, the same as JSON.
"""

from sextant.capacity.files import size_files
from sextant.experiment.loading import load_experiment
from sextant.processes.job_log import job_log

with job_log(snakemake.log[0]):
    experiment = load_experiment(snakemake.config)
    size_files(
        {name: snakemake.input[name] for name in ("point", "feasibility", "trace")},
        experiment,
        experiment.trace_slos[snakemake.params.slo_id],
        dict(snakemake.output.items()),
        source=snakemake.wildcards.source,
        decision=snakemake.params.decision,
        seed=snakemake.params.seed,
    )
