# Needs: the store.
# Makes: <results>/report/: a page that opens without a network, the answer as JSON, and figures/,
#        the page's figures as SVG files:
#          price_probability_<source>: price against the probability to meet each SLO;
#          load_<SLO>_<LLM>_<metric>: a latency over the load of a replica, a curve per GPU profile;
#          so_scores_<source>: success against overspend, a mark per predictor;
#          prediction_<predictor>: predicted against measured latencies, a mark per LLM and load.
#        With more than 6 SLOs only the sheet's first is shown in full.
#        <results>/report/traces/{trace}: what a trace is like and how faithful the workloads are
#        that were fitted to it, as a page and as JSON; needs the normalised trace only.
# Steps: write_report; write_trace_report for each trace.


rule write_report:
    input:
        store="<results>/sextant.duckdb",
        library=library("write_report"),
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


rule write_trace_report:
    input:
        unpack(trace_workloads),
        trace="<results>/traces/{trace}.parquet",
        report="<results>/traces/{trace}.report.json",
        library=library("write_trace_report"),
    output:
        html=report(
            "<results>/report/traces/{trace}.html",
            caption="../report/trace.rst",
            category="Traces",
        ),
        json="<results>/report/traces/{trace}.json",
    log:
        "<logs>/write_trace_report/{trace}.log",
    benchmark:
        "<benchmarks>/write_trace_report/{trace}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        seed=config["seed"],
    script:
        "../../scripts/write_trace_report.py"
