# Needs: the points of a source and the facts of LLMs and GPU profiles.
# Makes: <results>/predictions/{source}/{predictor}/: latencies predicted for held-out and
#   unseen LLMs, the candidates and recommendations that follow, and the scores.
# Steps: evaluate_predictor. `measured` is the predictor that looks at the truth.


rule evaluate_predictor:
    input:
        point="<results>/points/{source}/point.parquet",
        feasibility="<results>/points/{source}/feasibility.parquet",
        features=list(config.get("features", {}).values()),
        configs=[row["config"] for row in EXPERIMENT.llms.values()],
        gpus=gpu_files(),
        library=predictor_library,
    output:
        prediction="<results>/predictions/{source}/{predictor}/prediction.parquet",
        candidate="<results>/predictions/{source}/{predictor}/candidate.parquet",
        recommendation="<results>/predictions/{source}/{predictor}/recommendation.parquet",
        score="<results>/predictions/{source}/{predictor}/score.parquet",
    log:
        "<logs>/evaluate_predictor/{source}/{predictor}.log",
    benchmark:
        "<benchmarks>/evaluate_predictor/{source}/{predictor}.tsv"
    conda:
        "../../environment.yml"
    # Tuning uses all of them; Snakemake cuts the number to `--cores`.
    threads: 4
    resources:
        mem_mb=4000,
        runtime=240,
    params:
        seed=config["seed"],
        decision=config["decision"],
        memory_utilization=config["engine"]["memory_utilization"],
        # What the sheets say, so that a comment or the order of rows makes nothing again.
        rows=sheet_rows(EXPERIMENT.point_slos),
    script:
        "../../scripts/evaluate_predictor.py"
