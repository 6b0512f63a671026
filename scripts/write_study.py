"""Analyse the cells of a study, of which `runs` are `run.json`: tables, a page, JSON, figures."""

from pathlib import Path

from sextant.base.job_log import job_log
from sextant.experiment.loading import load_experiment
from sextant.studies.write import TABLES, write_study

with job_log(snakemake.log[0]):
    experiment, output = load_experiment(snakemake.config), snakemake.output
    write_study(
        snakemake.wildcards.study,
        [Path(run).parent for run in snakemake.input.runs],
        experiment.llm_facts,
        experiment.profiles,
        {name: Path(output[name]) for name in TABLES},
        Path(output.html),
        Path(output.json),
        Path(output.figures),
        seed=snakemake.config["seed"],
    )
