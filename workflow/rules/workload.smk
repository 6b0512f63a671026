# Needs: a normalised trace, or a use case that ships.
# Makes: <results>/workloads/{workload}/: the request model, the arrival model, their fidelity.
# Steps: fit_workload. No library among the inputs: see benchmark.smk.


rule fit_workload:
    input:
        unpack(fitted_trace),
    output:
        requests="<results>/workloads/{workload}/requests.parquet",
        arrivals="<results>/workloads/{workload}/arrivals.json",
        times="<results>/workloads/{workload}/arrivals.parquet",
        validation="<results>/workloads/{workload}/validation.json",
    log:
        "<logs>/fit_workload/{workload}.log",
    benchmark:
        "<benchmarks>/fit_workload/{workload}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        row=lambda wildcards: dict(EXPERIMENT.workloads[named("workload", wildcards)]),
        seed=config["seed"],
        origin_sha256=origin_sha256,
    script:
        "../../scripts/fit_workload.py"
