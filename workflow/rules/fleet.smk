# Needs: the points of a source, the facts of LLMs and GPU profiles, the sheets of demands and
#   supply, and the normalised traces that demands name.
# Makes: <results>/fleet/{source}/, where the configuration names both sheets: fleet.parquet, a row
#   a demand; index.html, who runs where and what binds; fleet.json, the same as data.
# Steps: plan_fleet.


rule plan_fleet:
    input:
        point="<results>/points/{source}/point.parquet",
        feasibility="<results>/points/{source}/feasibility.parquet",
        demands=config["sheets"]["demands"],
        supply=config["sheets"]["supply"],
        traces=[f"<results>/traces/{trace}.parquet" for trace in fleet_traces()],
        sheets=[config["sheets"][name] for name in ("llms", "gpu_profiles")],
        features=list(config.get("features", {}).values()),
        configs=[row["config"] for row in EXPERIMENT.llms.values()],
        gpus=gpu_files(),
        named=fleet_facts(),
        library=library("plan_fleet"),
    output:
        table="<results>/fleet/{source}/fleet.parquet",
        html=report(
            "<results>/fleet/{source}/index.html",
            caption="../report/fleet.rst",
            category="Fleet",
        ),
        json="<results>/fleet/{source}/fleet.json",
    log:
        "<logs>/plan_fleet/{source}.log",
    benchmark:
        "<benchmarks>/plan_fleet/{source}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        seed=config["seed"],
        decision=config["decision"],
    script:
        "../../scripts/plan_fleet.py"
