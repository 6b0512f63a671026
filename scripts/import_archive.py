"""Import a published characterization as cells of the benchmark contract.

Inputs: the archive, the manifest of its files, the sheets of cells and of published points.
Outputs: every cell's files.
"""

from pathlib import Path

from sextant.base.job_log import job_log
from sextant.points.importing.llm_pilot import import_archive

with job_log(snakemake.log[0]):
    given, decision = snakemake.input, snakemake.params.decision
    import_archive(
        Path(given.source),
        Path(given.manifest),
        Path(given.cells),
        Path(given.published_points),
        # <out>/<source>/<llm>/<gpu_profile>/<workload>/<scenario>/run.json
        Path(snakemake.output.runs[0]).parents[5],
        workload_id=decision["workload_id"],
        scenario_id=decision["scenario_id"],
        source_name=snakemake.params.source,
    )
