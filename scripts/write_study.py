"""Analyse the cells of a study.

Inputs: every file of the study's cells, of which `runs` are their `run.json`. Outputs: its rows of
the tables `point`, `feasibility` and `telemetry`; `html`, a page; `json`, its numbers; `figures`.
"""

from pathlib import Path

from sextant.base.job_log import job_log
from sextant.experiment.loading import load_experiment
from sextant.studies.study_data import TABLES
from sextant.studies.write import StudyOutputs, write_study

with job_log(snakemake.log[0]):
    experiment, output = load_experiment(snakemake.config), snakemake.output
    write_study(
        snakemake.wildcards.study,
        [Path(run).parent for run in snakemake.input.runs],
        experiment.llm_facts,
        experiment.profiles,
        StudyOutputs(
            html=Path(output.html),
            json=Path(output.json),
            figures=Path(output.figures),
            tables={name: Path(output[name]) for name in TABLES},
        ),
        seed=snakemake.config["seed"],
    )
