"""Build the database from the files of all stages."""

from dataclasses import asdict
from pathlib import Path

from sextant.base.files import MAKE_TRACE_AGAIN, read_object
from sextant.base.job_log import job_log
from sextant.experiment.loading import load_experiment
from sextant.points import store
from sextant.points.frame import feature_rows, published_features

PREDICTED = ("prediction", "candidate", "recommendation", "score")
FILES = ("point", "feasibility", "telemetry", *PREDICTED, "capacity", "fleet")

with job_log(snakemake.log[0]):
    experiment = load_experiment(snakemake.config)
    traces = [
        {"trace_id": name, **read_object(path, fix=MAKE_TRACE_AGAIN)}
        for name, path in zip(experiment.traces, snakemake.input.reports, strict=True)
    ]
    validations = dict(zip(experiment.workloads, snakemake.input.validations, strict=True))
    files = {name: snakemake.input[name] for name in FILES}
    store.build_store(
        Path(snakemake.output[0]),
        rows={
            **store.store_fact_rows(experiment.llm_facts, experiment.profiles),
            "trace": traces,
            "workload": store.workload_rows(experiment.workloads, validations),
            "slo": [asdict(slo) for slo in experiment.slos.values()],
            "feature": feature_rows(snakemake.config["source"], published_features(experiment)),
            "decision": [snakemake.config["decision"] | {"source": snakemake.config["source"]}],
        },
        files={name: [paths] if isinstance(paths, str) else paths for name, paths in files.items()},
    )
