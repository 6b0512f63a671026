"""What a change runs again, to the job; measurements are never thrown away."""

import re
from collections import Counter
from collections.abc import Callable

import pytest

AFTER_POINTS = {"evaluate_predictor": 4, "build_store": 1, "write_report": 1}

ALL_CELLS = {"benchmark_cell": 8, "aggregate_points": 1, **AFTER_POINTS}

# The reports on the trace and on the workloads.
PAGES = {"write_trace_report": 1, "write_workload_report": 1}


def append(sheet: str, *cells: object) -> Callable:
    def change(project) -> None:
        with project.sheet(sheet).open("a") as handle:
            handle.write("\t".join(map(str, cells)) + "\n")

    return change


def replace(path: str, old: str, new: str) -> Callable:
    def change(project) -> None:
        file = project.folder / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return change


def edit_code(module: str) -> Callable:
    def change(project) -> None:
        with (project.folder / "scripts" / "sextant" / module).open("a") as handle:
            handle.write("\n# an edit\n")

    return change


CASES = {
    "nothing": (lambda project: None, {}),
    "a new LLM": (
        append("llms", "new", "resources/llms/demo-qwen2-26m.json", ""),
        {"benchmark_cell": 2, "aggregate_points": 1, **AFTER_POINTS},
    ),
    "a new GPU profile": (
        append("gpu_profiles", "3xcpu-core", "cpu-core", 3, 0.12),
        {"benchmark_cell": 4, "aggregate_points": 1, **AFTER_POINTS},
    ),
    "a new SLO": (append("demo/slos", "new", 1, 2, 90, 3), AFTER_POINTS),
    "another price": (replace("config/gpu_profiles.tsv", "\t0.08", "\t0.16"), AFTER_POINTS),
    "another level": (
        replace("config/scenarios.tsv", "1,2", "1,2,4"),
        {"benchmark_cell": 8, "aggregate_points": 1, **AFTER_POINTS},
    ),
    "more memory on a device": (
        replace("resources/gpus/cpu-core.yaml", "memory_gib: 0.125", "memory_gib: 0.25"),
        {"benchmark_cell": 8, "aggregate_points": 1, **AFTER_POINTS},
    ),
    "another LLM config": (
        replace("resources/llms/demo-opt-6m.json", '"ffn_dim": 1024', '"ffn_dim": 2048'),
        {"benchmark_cell": 2, "aggregate_points": 1, **AFTER_POINTS},
    ),
    "an edit of the benchmark's code": (edit_code("benchmark/cell.py"), {}),
    "an edit of the load client": (edit_code("load/client.py"), {}),
    "an edit of the workload's code": (edit_code("workload/fit.py"), PAGES),
    "an edit of ingest's code": (edit_code("ingest/job.py"), {}),
    "an edit of the metrics": (edit_code("metrics.py"), {"aggregate_points": 1, **AFTER_POINTS}),
    "another cap of the workload": (
        replace("config/workloads.tsv", "\t1024\t", "\t512\t"),
        {"fit_workload": 1, **ALL_CELLS, **PAGES},
    ),
    "another trace": (
        replace("resources/traces/azure-2023-conv-sample.csv", ",ok", ",ok "),
        {"ingest_trace": 1, "fit_workload": 1, **ALL_CELLS, **PAGES},
    ),
    "a cap and an edit at once": (
        lambda project: (
            replace("config/workloads.tsv", "\t1024\t", "\t512\t")(project),
            edit_code("store.py")(project),
        ),
        {"fit_workload": 1, **ALL_CELLS, **PAGES},
    ),
    "a trace that was copied": (
        lambda project: (project.folder / "resources/traces/azure-2023-conv-sample.csv").touch(),
        {},
    ),
    "another pin of the environment": (replace("environment.yml", "- ", "-  "), {}),
    "another bandwidth of a device": (
        replace("resources/gpus/cpu-core.yaml", "bandwidth_gb_s: 15", "bandwidth_gb_s: 20"),
        AFTER_POINTS,
    ),
    "an edit of a predictor": (
        edit_code("predict/llm_pilot.py"),
        AFTER_POINTS | {"evaluate_predictor": 1},
    ),
    "an edit of the law of roofline": (
        edit_code("predict/roofline/law.py"),
        AFTER_POINTS | {"evaluate_predictor": 1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_runs_just_what_it_must(project, name: str) -> None:
    change, expected = CASES[name]
    change(project)
    assert project.planned() == Counter(expected)


def test_a_new_llm_is_measured_on_every_profile_and_no_other_llm_is(project) -> None:
    append("llms", "new", "resources/llms/demo-qwen2-26m.json", "")(project)
    done = project.snakemake("--dry-run", "--cores", "2")
    measured = re.findall(
        r"wildcards: .*\bllm=([^,]+), gpu_profile=([^,]+)", done.stdout + done.stderr
    )
    assert sorted(measured) == [("new", "1xcpu-core"), ("new", "2xcpu-core")]
