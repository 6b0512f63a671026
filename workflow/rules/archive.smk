# Needs: a published characterization (a download, or a folder or tar of the user's), the
#   checksums of its files, which cells it has, and the points it gives only as medians.
# Makes: one folder per cell, as a benchmark does; a cell that was not measured says why.
# Steps: import_archive, whose script lies beside the archive's sheets.
#
# Running this again costs no GPU time, so, unlike benchmark.smk, it lists the library.


rule import_archive:
    input:
        # The manifest has the checksum of every file in it, so its date does not matter.
        source=ancient(archive_data()),
        manifest=config["archive"]["manifest"],
        cells=config["archive"]["cells"],
        published_points=config["archive"]["published_points"],
        library=library("../resources/llm-pilot/import_archive"),
    output:
        requests=cell_files("requests.parquet"),
        server=cell_files("server.parquet"),
        telemetry=cell_files("telemetry.parquet"),
        tunings=cell_files("tuning.json"),
        runs=cell_files("run.json"),
    log:
        "<logs>/import_archive.log",
    benchmark:
        "<benchmarks>/import_archive.tsv"
    conda:
        "../../environment.yml"
    threads: 2
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        source=config["source"],
        decision=config["decision"],
    script:
        "../../resources/llm-pilot/import_archive.py"
