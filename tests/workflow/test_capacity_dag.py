"""From a row of the sheet of SLOs to the capacity of each LLM, on the fake engine."""

import json
import re

import pytest

from forked_snakemake import dry_run
from html_page import Page, figure_texts
from project import Project

pytestmark = pytest.mark.slow

TRACE = "azure-2023-conv-sample"
HEADER = "slo_id ttft_ms itl_ms percentile users request_rate_rps trace_id window_s"
SLOS = {
    "replayed": ("", "", TRACE, 60),
    "at-a-rate": ("", 2, "", 60),
    "impossible": ("", "", TRACE, 0),
    "users": (4, "", "", ""),
}
LIMITS_MS = {"impossible": (0.001, 0.001)}
SIZED = ("replayed", "at-a-rate", "impossible")
LLMS = ("llm-opt-6m", "llm-neox-34m")


@pytest.fixture(scope="module")
def sized(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The measured project with SLOs for a trace and for a rate, run again."""
    project = finished.copy(tmp_path_factory.mktemp("sized") / "project")
    rows = [(name, *LIMITS_MS.get(name, (1000, 100)), 95, *load) for name, load in SLOS.items()]
    project.write_sheet("demo/slos", HEADER, *rows)
    header = "llm_id config model"
    llms = [(llm, f"resources/llms/{llm.replace('llm', 'demo')}.json", "") for llm in LLMS]
    project.write_sheet("llms", header, *llms)
    project.set_config(predictors=["static_policy"])
    done = project.snakemake("--cores", "2")
    assert done.returncode == 0, done.stderr
    return project


def answers(project: Project, slo: str) -> dict:
    path = project.folder / "results/capacity/measured" / slo / "capacity.json"
    return json.loads(path.read_text())


def test_the_table_has_what_the_json_has(sized) -> None:
    stored = sized.query(
        """SELECT slo_id, trace_id, llm_id, gpu_profile_id, status, replicas, usd_per_hour,
        n_windows_missed_by_failure, is_chosen FROM capacity ORDER BY ALL"""
    )
    found = []
    for slo in SIZED:
        made = answers(sized, slo)
        assert [each["llm_id"] for each in made["answers"]] == list(LLMS)
        for answer in made["answers"]:
            assert len(answer["alternatives"]) == 2
            chosen = answer["gpu_profile_id"]
            missed = answer["failure"]["n_windows_missed"] if chosen else None
            found += [
                (
                    *(slo, made["slo"].get("trace_id"), answer["llm_id"]),
                    *(row[name] for name in ("gpu_profile_id", "status")),
                    *(row[name] for name in ("replicas", "usd_per_hour")),
                    missed if row["gpu_profile_id"] == chosen else None,
                    row["gpu_profile_id"] == chosen,
                )
                for row in answer["alternatives"]
            ]
    key = [row[:4] for row in stored]
    assert key == sorted(key) and len(key) == len(set(key)) == 3 * 2 * 2
    assert set(stored) == set(found)
    assert {row[0] for row in stored if row[-1]} == {"replayed", "at-a-rate"}


def test_a_trace_is_replayed_with_the_caps_of_the_workload(sized) -> None:
    made = answers(sized, "replayed")
    assert made["demand"]["name"] == TRACE and made["demand"]["n_requests"] == 2000
    assert made["demand"]["longest_request_tokens"] == 512 + 64
    (answer, _) = made["answers"]
    assert "requests are shortened to the caps" in answer["warnings"][0]
    assert "From measured (this run)" in answer["text"]
    assert answer["slo"]["window_s"] == 60 and len(answer["timeline"]["fixed"]["is_met"]) == 6


def test_a_rate_has_the_arrivals_of_the_workload(sized) -> None:
    demand = answers(sized, "at-a-rate")["demand"]
    assert demand["name"].startswith("conversation with its trace's arrivals")
    assert demand["rate_rps"] == pytest.approx(2, rel=0.1) and demand["duration_s"] == 3600
    assert sized.query("SELECT DISTINCT slo_id FROM recommendation WHERE slo_id = 'at-a-rate'")


def test_limits_that_nothing_meets_are_an_answer(sized) -> None:
    for answer in answers(sized, "impossible")["answers"]:
        assert answer["gpu_profile_id"] is None
        assert {row["status"] for row in answer["alternatives"]} == {"too_slow"}


@pytest.mark.parametrize("slo", SIZED)
def test_the_page_has_a_timeline_for_each_llm_that_is_served(sized, slo: str) -> None:
    html = (sized.folder / "results/capacity/measured" / slo / "index.html").read_text("utf-8")
    assert all(llm in Page(html).text for llm in LLMS)
    n_timelines = figure_texts(html).count("Requests/s")
    assert n_timelines == (0 if slo == "impossible" else len(LLMS))


def test_the_report_has_a_line_for_each_llm_and_leads_to_the_pages(sized) -> None:
    report = sized.folder / "results/report/index.html"
    page = Page(report.read_text("utf-8"))
    links = [link for link in page.links if not link.startswith("#")]
    names = [(report.parent / link).resolve().parent.name for link in links]
    assert names == [*sorted(SIZED), "traces"]
    assert all((report.parent / link).is_file() for link in links)
    assert "the traffic of azure-2023-conv-sample" in page.text
    assert re.search(r"[1-9][\d,.]* USD \d+ windows? of 6 missed", page.text)
    said = sized.sextant("show").stdout
    assert "p95 TTFT ≤ 1,000 ms" in said and ", simulated" in said
    for line in (
        "p95 TTFT ≤ 1,000 ms",
        "times its limit",
        "a replica just meets the SLO at a mean of",
    ):
        assert line in page.text


@pytest.mark.parametrize("name", ["capacity.parquet", "capacity.json"])
def test_what_is_deleted_is_sized_again(sized, name: str) -> None:
    path = sized.folder / "results/capacity/measured/at-a-rate" / name
    aside = path.rename(sized.folder / "aside")
    planned = dry_run(sized.folder).by_rule
    aside.rename(path)
    assert planned["size_capacity"] == 1 and not planned["benchmark_cell"]


def test_an_edit_of_its_library_sizes_again_and_measures_nothing(sized) -> None:
    file = sized.folder / "scripts/sextant/capacity/capacity.py"
    text = file.read_text()
    file.write_text(f"{text}\n# an edit\n")
    planned = dry_run(sized.folder).by_rule
    file.write_text(text)
    assert planned == {"size_capacity": 3, "build_store": 1, "write_report": 1}
