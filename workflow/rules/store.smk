# Needs: what all other stages made.
# Makes: <results>/sextant.duckdb, rebuilt from the files each time.
# Steps: build_store.


rule build_store:
    input:
        sheets=list(config["sheets"].values()),
        features=list(config.get("features", {}).values()),
        configs=[row["config"] for row in EXPERIMENT.llms.values()],
        gpus=gpu_files(),
        reports=[f"<results>/traces/{trace}.report.json" for trace in IDS["trace"]],
        validations=[
            f"<results>/workloads/{workload}/validation.json" for workload in IDS["workload"]
        ],
        point=f"<results>/points/{config['source']}/point.parquet",
        feasibility=f"<results>/points/{config['source']}/feasibility.parquet",
        telemetry=f"<results>/points/{config['source']}/telemetry.parquet",
        prediction=evaluated("prediction"),
        candidate=evaluated("candidate"),
        recommendation=evaluated("recommendation"),
        score=evaluated("score"),
        capacity=capacity_files("capacity.parquet"),
        fleet=fleet_files("fleet.parquet"),
        schema=os.path.relpath(ROOT / "resources" / "sql" / "schema.sql"),
        library=library("build_store"),
    output:
        "<results>/sextant.duckdb",
    log:
        "<logs>/build_store.log",
    benchmark:
        "<benchmarks>/build_store.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        decision=config["decision"],
    script:
        "../../scripts/build_store.py"
