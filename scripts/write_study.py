"""Analyse the cells of a study, of which `runs` are `run.json`: tables, a page, JSON, figures."""

from pathlib import Path

from sextant.base.job_log import job_log
from sextant.experiment.loading import load_experiment
from sextant.studies.study import write_study

with job_log(snakemake.log[0]):
    experiment = load_experiment(snakemake.config)
    write_study(
        snakemake.wildcards.study,
        [Path(run).parent for run in snakemake.input.runs],
        experiment.llm_facts,
        experiment.profiles,
        {name: Path(path) for name, path in snakemake.output.items()},
        snakemake.config["seed"],
    )
