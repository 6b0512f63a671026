"""Demands and supply in the configuration: a rule, a page, a table, and a part of the report."""

import json
import shutil

import pytest

from forked_snakemake import dry_run, run
from html_page import Page
from project import Project

pytestmark = pytest.mark.slow
DEMANDS = "demand_id team {} itl_ms percentile users trace_id priority"
SUPPLY = "pool_id gpu_id nodes devices_per_node kind usd_per_hour"
PAGE = "results/fleet/measured/index.html"


RACK = ("rack", "cpu-core", 2, 2)


def ask(project: Project, *rows: tuple, supply: tuple = RACK, llm: str = "llm_id") -> None:
    project.write_sheet("demands", DEMANDS.format(llm), *rows)
    project.write_sheet("supply", SUPPLY, (*supply, "owned", 0.04))
    sheets = {"demands": "config/demands.tsv", "supply": "config/supply.tsv"}
    project.set_config(**{f"sheets__{name}": path for name, path in sheets.items()})


@pytest.fixture(scope="module")
def planned(finished, tmp_path_factory) -> Project:
    """A demand that is easily met, one at the rate of a trace, and one that nothing meets."""
    project = finished.copy(tmp_path_factory.mktemp("fleet") / "project")
    ask(
        project,
        ("chat", "one", "llm-opt-6m", 10_000, 50, 2, "", 1),
        ("code", "two", "llm-llama-16m", 10_000, 50, "", "azure-2023-conv-sample", 1),
        ("hasty", "two", "llm-opt-6m", 0.000001, 50, 2, "", 2),
    )
    done = project.snakemake("--cores", "2")
    assert done.returncode == 0, done.stderr
    return project


def test_nothing_but_the_fleet_and_what_shows_it_runs(finished, tmp_path) -> None:
    project = finished.copy(tmp_path / "project")
    ask(project, ("chat", "one", "llm-opt-6m", 10_000, 50, 2, "", 1))
    jobs = dry_run(project.folder).by_rule
    assert jobs == {"plan_fleet": 1, "build_store": 1, "write_report": 1}


def test_facts_that_only_demands_or_supply_name_make_the_plan_stale(planned) -> None:
    gpu, llm = planned.folder / "resources/gpus/L4-24GB.yaml", planned.folder / "own.json"
    shutil.copy(planned.folder / "resources/llms/demo-opt-6m.json", llm)
    ask(
        planned,
        ("own", "one", llm.name, 10_000, 50, 2, "", 1),
        supply=("l4", gpu.stem, 1, 2),
        llm="hf_config",
    )
    for file in (gpu, llm):
        done = planned.snakemake("--cores", "1", "--touch", PAGE)
        assert done.returncode == 0, done.stderr
        assert "plan_fleet" not in dry_run(planned.folder).by_rule
        file.write_text(file.read_text() + "\n")
        assert dry_run(planned.folder).by_rule["plan_fleet"] == 1


def test_the_store_has_a_row_a_demand(planned) -> None:
    rows = {
        row[0]: row[1:]
        for row in planned.query(
            "SELECT demand_id, team, status, gpu_profile_id, replicas, probability_met, nodes "
            "FROM fleet"
        )
    }
    assert set(rows) == {"chat", "code", "hasty"}
    team, status, profile, replicas, probability, nodes = rows["chat"]
    assert (team, status) == ("one", "served")
    assert profile in ("1xcpu-core", "2xcpu-core") and replicas >= 1
    assert 0.9 <= probability <= 1 and "rack" in nodes
    assert rows["hasty"][1:] == ("unserved", None, None, None, None)


def test_page_and_json_say_the_same(planned) -> None:
    page = Page((planned.folder / PAGE).read_text())
    answer = json.loads((planned.folder / PAGE).with_name("fleet.json").read_text())
    plan = answer["plan"]
    asked = {each["demand_id"]: each for each in plan["unserved"]}
    assert "hasty" in asked
    asked |= {each["demand"]["demand_id"]: each["demand"] for each in plan["served"]}
    assert [*sorted(asked)] == ["chat", "code", "hasty"]
    # That of the trace's busiest hour: its 2,000 requests arrive within minutes.
    assert asked["code"]["slo"]["request_rate_rps"] > 1
    for word in ("chat", "code", "hasty", "rack", "Who runs where", "Not served"):
        assert word in page.text
    assert not [link for link in page.links if not link.startswith("#")]


def test_the_report_lists_the_fleet(planned) -> None:
    page = Page((planned.folder / "results/report/index.html").read_text())
    assert any(link.endswith("fleet/measured/index.html") for link in page.links)
    assert page.values("href").count("#fleet") == 1
    assert "hasty" in page.text


WRONG = {
    "one sheet alone": (None, "supply", "demands alone"),
    "an unknown LLM": (("chat", "one", "nobody", 10, 50, 2, "", 1), "demands.tsv", "'nobody'"),
    "an unknown trace": (("chat", "one", "llm-opt-6m", 10, 50, "", "none", 1), "tsv", "'none'"),
}


@pytest.mark.parametrize("row, place, problem", WRONG.values(), ids=WRONG)
def test_a_wrong_sheet_is_named_before_anything_runs(project, row, place, problem) -> None:
    if row is None:
        project.set_config(sheets__demands="config/demands.tsv")
    else:
        ask(project, row)
    status, text = run(project.folder, "--dry-run", "--cores", "1")
    assert status != 0
    assert place in text and problem in text
    assert "Traceback" not in text
