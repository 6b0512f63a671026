# Needs: a workload and an LLM's config; a machine with the devices of the GPU profile.
# Makes: one folder a cell: every request, the server's and the devices' state over time,
#   the tuning of the batch weight, the exact command. An infeasible cell is a result.
# Steps: benchmark_cell.
#
# Measurements cost hours of GPU time, so the results are no outputs: Snakemake would delete them
# before a job and after a failed one. The output is a receipt, which the job writes last; until
# then the former results stay. A job whose cell is measured already writes the receipt and ends.
# A cell whose results differ from what the sheets ask for gets a receipt with another name (`take`),
# which is missing: contents decide, not Snakemake's records (sextant.experiment.current). Fitting a
# workload again may measure its cells again, so ingest and fit do not list library files either.


rule benchmark_cell:
    input:
        unpack(cell_inputs),
    output:
        receipt=f"<results>/benchmarks/{CELL}/measured{{take}}.json",
    log:
        job=f"<logs>/benchmark_cell/{CELL}{{take}}.log",
        server=f"<logs>/benchmark_cell/{CELL}{{take}}.server.log",
    benchmark:
        f"<benchmarks>/benchmark_cell/{CELL}{{take}}.tsv"
    # A rule's retries hold in the Snakemake that runs a job, too: eight attempts on SLURM.
    retries: 1 if workflow.is_main_process else 0
    conda:
        "../../environment.yml"
    threads: cell_threads
    resources:
        mem_mb=lambda wildcards, attempt: cell_request(wildcards, attempt).memory_mb,
        runtime=lambda wildcards, attempt: cell_request(wildcards, attempt).minutes,
        cpus_per_task=lambda wildcards: cell_request(wildcards).cores,
        gpu=lambda wildcards: cell_request(wildcards).gpus,
        gpu_model=lambda wildcards: cell_request(wildcards).gpu_model,
        # SLURM would spread a server's devices over nodes.
        nodes=1,
    params:
        # A parameter that depends on the input is not compared with Snakemake's records.
        definition=lambda wildcards, input: definition(wildcards),
    script:
        "../../scripts/benchmark_cell.py"


rule aggregate_points:
    input:
        cells=finished_cells(),
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
    params:
        changed=lambda wildcards: changed(),
        levels=lambda wildcards: asked_levels(),
    script:
        "../../scripts/aggregate_points.py"
