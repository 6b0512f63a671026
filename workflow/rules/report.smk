# Needs: the store.
# Makes: <results>/report/: a page that opens without a network, and the answer as JSON.
# Steps: write_report.


rule write_report:
    input:
        store="<results>/sextant.duckdb",
        library=library("report/tables", "report/figures", "report/page"),
        page=[f"{workflow.basedir}/scripts/sextant/report/page.{end}" for end in ("html.j2", "css")],
    output:
        html=report(
            "<results>/report/index.html",
            caption="../report/recommendation.rst",
            category="Recommendation",
        ),
        json=report(
            "<results>/report/recommendations.json",
            caption="../report/recommendation.rst",
            category="Recommendation",
        ),
    log:
        "<logs>/write_report.log",
    benchmark:
        "<benchmarks>/write_report.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=30,
    script:
        "../../scripts/write_report.py"
