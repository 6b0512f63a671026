"""Analyse the cells of a study.

Inputs: the study's `cells` (their `run.json`) and its rows of the tables `point`,
`feasibility` and `telemetry`. Outputs: `html`, a page; `json`, its numbers; `figures`.
"""

from pathlib import Path

from sextant.experiment import load_experiment
from sextant.logs import job_log
from sextant.studies.job import write_study

TABLES = ("point", "feasibility", "telemetry")

with job_log(snakemake.log[0]):
    experiment = load_experiment(snakemake.config)
    write_study(
        snakemake.wildcards.study,
        [Path(run).parent for run in snakemake.input.runs],
        {name: Path(snakemake.input[name]) for name in TABLES},
        experiment.llm_facts,
        experiment.profiles,
        Path(snakemake.output.html),
        Path(snakemake.output.json),
        Path(snakemake.output.figures),
        seed=snakemake.config["seed"],
    )
