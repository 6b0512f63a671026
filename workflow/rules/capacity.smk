# Needs: the points of a source, the facts of LLMs and GPU profiles, and the SLO's trace, or the
#   workload that arrives at its rate.
# Makes: <results>/capacity/{source}/{slo}/, for each SLO with a trace or a rate: capacity.parquet,
#   the rows of the table; index.html, a page with the timeline of each LLM; capacity.json, the same
#   as data.
# Steps: size_capacity.


rule size_capacity:
    input:
        unpack(slo_traffic),
        point="<results>/points/{source}/point.parquet",
        feasibility="<results>/points/{source}/feasibility.parquet",
        features=list(config.get("features", {}).values()),
        configs=[row["config"] for row in EXPERIMENT.llms.values()],
        gpus=gpu_files(),
        library=library("size_capacity"),
    output:
        table="<results>/capacity/{source}/{slo}/capacity.parquet",
        html=report(
            "<results>/capacity/{source}/{slo}/index.html",
            caption="../report/capacity.rst",
            category="Capacity",
        ),
        json="<results>/capacity/{source}/{slo}/capacity.json",
    log:
        "<logs>/size_capacity/{source}/{slo}.log",
    benchmark:
        "<benchmarks>/size_capacity/{source}/{slo}.tsv"
    conda:
        "../../environment.yml"
    threads: 4
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        slo_id=lambda wildcards: named("slo", wildcards),
        seed=config["seed"],
        decision=config["decision"],
        rows=lambda wildcards: sheet_rows([named("slo", wildcards)]),
    script:
        "../../scripts/size_capacity.py"
