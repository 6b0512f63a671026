# Needs: the store.
# Makes: <results>/report/: a page that opens without a network, the answer as JSON, and figures/,
#        the page's figures as SVG files:
#          latency_<LLM>: TTFT and ITL against throughput and throughput per dollar;
#          feasibility: LLMs x GPU profiles;
#          so_scores_<SLO>: success against overspend, a mark per predictor;
#          so_by_limits: S/O by latency limits (sheets of many SLOs);
#          prediction_<SLO>_<predictor>: predicted against measured latencies per LLM.
#        With more than 6 SLOs only the sheet's first is shown in full.
# Steps: write_report.


rule write_report:
    input:
        store="<results>/sextant.duckdb",
        library=library(
            "report/read",
            "report/tables",
            "report/summary",
            "report/promises",
            "report/plotting",
            "report/figures",
            "report/score_figures",
            "report/feasibility",
            "report/drawings",
            "report/page",
        ),
        page=[
            f"{workflow.basedir}/scripts/sextant/report/{file}"
            for file in ("page.html.j2", "summary.html.j2", "feasibility.html.j2", "page.css")
        ],
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
        figures=report(
            directory("<results>/report/figures"),
            patterns=["{figure}.svg"],
            caption="../report/recommendation.rst",
            category="Figures",
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
