# Sextant: from production traces of LLM requests to the cheapest GPU that meets an SLO.
#
# traces → workloads → benchmarks of real servers → points → predictors → store → report.
# `snakemake --cores all` runs the demo; docs/adding.md tells how to run your own.
from snakemake.utils import min_version

min_version("9.16")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


report: "workflow/report/workflow.rst"


include: "workflow/rules/ingest.smk"
include: "workflow/rules/workload.smk"
include: "workflow/rules/benchmark.smk"


if "archive" in config:

    include: "workflow/rules/archive.smk"


include: "workflow/rules/predict.smk"
include: "workflow/rules/capacity.smk"


if "demands" in config["sheets"]:

    include: "workflow/rules/fleet.smk"


include: "workflow/rules/store.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/studies.smk"


rule all:
    default_target: True
    input:
        "<results>/report/index.html",
        "<results>/sextant.duckdb",
        trace_reports(),
        capacity_files("index.html"),
        fleet_files("index.html"),
        intermediate_results(),
