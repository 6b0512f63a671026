# Needs: the cells of the rows of benchmarks.tsv that name a study.
# Makes: <results>/studies/{study}/: index.html, a page that opens without a network; figures/, its
#   figures as SVG; study.json, its numbers; and the study's rows of the tables point,
#   feasibility and telemetry.
# Steps: write_study. Targets: each study by its name, e.g. `snakemake --cores all pareto
#   --configfile config/studies.yaml`, and all of them, `studies`.


rule write_study:
    input:
        cells=lambda wildcards: finished_cells(EXPERIMENT.studies[wildcards.study]),
        library=lambda wildcards: library("write_study", f"sextant.studies.{wildcards.study}"),
    output:
        html=report(
            "<results>/studies/{study}/index.html",
            caption="../report/study.rst",
            category="Studies",
            labels={"study": "{study}"},
        ),
        json="<results>/studies/{study}/study.json",
        figures=directory("<results>/studies/{study}/figures"),
        point="<results>/studies/{study}/point.parquet",
        feasibility="<results>/studies/{study}/feasibility.parquet",
        telemetry="<results>/studies/{study}/telemetry.parquet",
    log:
        "<logs>/write_study/{study}.log",
    benchmark:
        "<benchmarks>/write_study/{study}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        changed=lambda wildcards: changed(EXPERIMENT.studies[wildcards.study]),
    script:
        "../../scripts/write_study.py"


for study in EXPERIMENT.studies:

    rule:
        name:
            study
        input:
            f"<results>/studies/{study}/index.html",
            finished_cells(EXPERIMENT.studies[study]),


rule:
    name:
        "studies"
    input:
        [f"<results>/studies/{study}/index.html" for study in EXPERIMENT.studies],
        [file for cells in EXPERIMENT.studies.values() for file in finished_cells(cells)],
