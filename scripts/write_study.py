"""Analyse the cells of a study: tables, a page, JSON, figures."""

from pathlib import Path

from sextant.base.job_log import job_log
from sextant.experiment.loading import load_experiment
from sextant.studies.study import write_study

with job_log(snakemake.log[0]):
    study, experiment = snakemake.wildcards.study, load_experiment(snakemake.config)
    write_study(
        study,
        [Path(file).parent for file in snakemake.input.cells],
        experiment.llm_facts,
        experiment.profiles,
        {name: Path(path) for name, path in snakemake.output.items()},
        snakemake.config["seed"],
    )
