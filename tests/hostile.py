"""A project whose ids try to be paths, commands, patterns, markup and formulas."""

import csv
import io

import pandas as pd

from project import Project
from support import FAKE_PYTHON

TRACE = "<script>alert('trace')</script>"
WORKLOAD = "../../{x}%j $(touch owned)"
USE_CASE = 'b"><img src=x onerror=alert(1)>'
LLMS = ("org/name", "..", '日本"`touch owned`')
PROFILES = ("-rf;touch owned", "2x<b>A&amp;</b>")
SCENARIO = "'users'@v\\n|*"
VARIANT = "@~/x{{7*7}}"
SLOS = ("$E=mc^2$ ' OR 1=1 --", "<svg onload=alert(1)>")
TRACED = ("<script>alert('llm')</script>", 'a&b"><svg onload=alert(1)>')
"""LLM and service of the trace's requests."""
IDS = (TRACE, WORKLOAD, USE_CASE, *LLMS, *PROFILES, SCENARIO, VARIANT, *SLOS)


def write(project: Project, name: str, header: str, *rows: tuple[object, ...]) -> None:
    """Write a sheet as a spreadsheet would, with quotes where a cell needs them."""
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows([header.split(), *rows])
    project.sheet(name).write_text(text.getvalue(), encoding="utf-8")


def write_hostile_sheets(project: Project, gpu_model: str = "") -> None:
    """Put hostile ids into every sheet; cells of three LLMs on two profiles, and of one variant."""
    sample = "resources/traces/hostile.csv"
    trace = pd.read_csv(project.folder / "resources/traces/azure-2023-conv-sample.csv")
    trace.assign(llm=TRACED[0], service=TRACED[1]).to_csv(project.folder / sample, index=False)
    configs = ("demo-opt-6m", "demo-llama-16m", "demo-bigcode-21m")
    write(project, "traces", "trace_id dataset format", (TRACE, sample, "sextant"))
    header = "workload_id trace_id use_case max_input_tokens max_output_tokens"
    fitted, shipped = (WORKLOAD, TRACE, "", 512, 32), (USE_CASE, "", "summarization", 512, 32)
    write(project, "workloads", header, fitted, shipped)
    rows = [
        (llm, f"resources/llms/{config}.json") for llm, config in zip(LLMS, configs, strict=True)
    ]
    write(project, "llms", "llm_id config", *rows)
    header = "gpu_profile_id gpu_id n_gpus usd_per_hour gpu_model"
    rows = [(name, "cpu-core", n, 0.04 * n, gpu_model) for n, name in enumerate(PROFILES, 1)]
    write(project, "gpu_profiles", header, *rows)
    header = "scenario_id kind levels warmup_s duration_s"
    write(project, "scenarios", header, (SCENARIO, "closed_loop", "1,2", 0.1, 0.4))
    write(project, "variants", "variant_id replicas placement", (VARIANT, 2, "shared"))
    header = "slo_id nttft_ms itl_ms percentile users"
    write(project, "slos", header, (SLOS[0], 100, 100, 50, 4), (SLOS[1], 1, 20, 90, 8))
    header = "llm_ids gpu_profile_ids workload_id scenario_id variant_ids study"
    rows = [
        ("*", ",".join(PROFILES), WORKLOAD, SCENARIO, "default", ""),
        (LLMS[1], PROFILES[0], WORKLOAD, SCENARIO, f"default, {VARIANT}", "replicas"),
    ]
    write(project, "benchmarks", header, *rows)
    project.set_config(
        engine__python=str(FAKE_PYTHON),
        sheets__slos="config/slos.tsv",
        sheets__variants="config/variants.tsv",
        decision={"workload_id": WORKLOAD, "scenario_id": SCENARIO},
        predictors=["roofline", "static_policy"],
    )
