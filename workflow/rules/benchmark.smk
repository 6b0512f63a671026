# Needs: a workload and an LLM's config; a machine with the devices of the GPU profile.
# Makes: one folder a cell: every request, the server's and the devices' state over time,
#   the tuning of the batch weight, the exact command. An infeasible cell is a result.
# Steps: benchmark_cell.
#
# Measurements cost hours of GPU time: they grow stale when `definition` changes (see
# sextant.experiment.experiment.cell_definition), the LLM's config, or the workload, by their
# contents (see `by_content`), never by an edit of code, a copy or a checkout. Fitting a workload
# again may measure its cells again, so ingest and fit do not list library files either.


rule benchmark_cell:
    input:
        unpack(cell_inputs),
    output:
        requests=f"{CELL_FOLDER}/requests.parquet",
        server=f"{CELL_FOLDER}/server.parquet",
        telemetry=f"{CELL_FOLDER}/telemetry.parquet",
        tuning=f"{CELL_FOLDER}/tuning.json",
        run=f"{CELL_FOLDER}/run.json",
    log:
        job=f"<logs>/benchmark_cell/{CELL}.log",
        server=f"<logs>/benchmark_cell/{CELL}.server.log",
    benchmark:
        f"<benchmarks>/benchmark_cell/{CELL}.tsv"
    # A rule's retries hold in the Snakemake that runs a job, too: eight attempts on SLURM.
    retries: 1 if workflow.is_main_process else 0
    conda:
        "../../environment.yml"
    threads: cell_threads
    resources:
        mem_mb=cell_memory_mb,
        runtime=cell_minutes,
        cpus_per_task=cell_cores,
        gpu=cell_gpus,
        gpu_model=cell_gpu_model,
        # SLURM would spread a server's devices over nodes.
        nodes=1,
    params:
        definition=definition,
    script:
        "../../scripts/benchmark_cell.py"


rule aggregate_points:
    input:
        runs=cell_files("run.json"),
        tunings=cell_files("tuning.json"),
        requests=cell_files("requests.parquet"),
        telemetry=cell_files("telemetry.parquet"),
        library=library("aggregate_points"),
    output:
        point="<results>/points/{source}/point.parquet",
        feasibility="<results>/points/{source}/feasibility.parquet",
        telemetry="<results>/points/{source}/telemetry.parquet",
    log:
        "<logs>/aggregate_points/{source}.log",
    benchmark:
        "<benchmarks>/aggregate_points/{source}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=60,
    script:
        "../../scripts/aggregate_points.py"
