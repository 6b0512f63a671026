# Needs: a trace in its publisher's format, a local file or a row of the registry.
# Makes: <results>/traces/{trace}.parquet in the trace contract, the rows set aside, a report.
# Steps: fetch_dataset (only for rows of the registry) → ingest_trace.


# A cluster's nodes may have no network.
localrules:
    fetch_dataset,


rule fetch_dataset:
    input:
        registry=ancient(config["registry"]),
    output:
        "<results>/downloads/{dataset}/{file}",
    log:
        "<logs>/fetch_dataset/{dataset}/{file}.log",
    benchmark:
        "<benchmarks>/fetch_dataset/{dataset}/{file}.tsv"
    retries: 2
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=500,
        runtime=60,
    params:
        dataset=lambda wildcards: EXPERIMENT.datasets[named("dataset", wildcards)],
    script:
        "../../scripts/fetch_dataset.py"


rule ingest_trace:
    input:
        # No library: see benchmark.smk.
        source=trace_source,
    output:
        trace="<results>/traces/{trace}.parquet",
        rejected="<results>/traces/{trace}.rejected.parquet",
        report="<results>/traces/{trace}.report.json",
    log:
        "<logs>/ingest_trace/{trace}.log",
    benchmark:
        "<benchmarks>/ingest_trace/{trace}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=60,
    params:
        row=lambda wildcards: dict(EXPERIMENT.traces[named("trace", wildcards)]),
        sha256=lambda wildcards: trace_sha256(EXPERIMENT, named("trace", wildcards)),
    script:
        "../../scripts/ingest_trace.py"
