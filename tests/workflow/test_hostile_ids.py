"""A whole DAG whose ids try to be paths, commands, patterns, markup and formulas."""

import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from hostile import (
    IDS,
    LLMS,
    PROFILES,
    SCENARIO,
    SLOS,
    TRACE,
    TRACED,
    USE_CASE,
    VARIANT,
    WORKLOAD,
    write,
    write_hostile_sheets,
)
from html_page import Page
from project import Project
from sextant.base.sheets import file_name
from sextant.points.folder import load_folder

pytestmark = pytest.mark.slow

MADE = {"results", "logs", ".snakemake"}
# Elements that load or run something, which no page of ours needs but for the report's what-if.
OWN = {"script", "form", "input"}
ACTIVE = {"script", "img", "iframe", "object", "embed", "link", "base", "form", "input", "image"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with such an id in every sheet, run to its end, studies included."""
    folder = tmp_path_factory.mktemp("around") / "project"
    folder.mkdir()
    project = Project(folder)
    write_hostile_sheets(project)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_LEAK", str(tmp_path_factory.getbasetemp() / "told"))
        done = project.snakemake("--cores", "2", "all", "studies")
    assert done.returncode == 0, done.stderr
    return project


def test_no_key_of_a_server_is_in_any_file(hostile, tmp_path_factory) -> None:
    """The fake engine wrote its environment to its log, and told us its keys."""
    keys = (tmp_path_factory.getbasetemp() / "told").read_text().split()
    # A fresh one for each server: of each cell, and of the two replicas of the study's.
    assert len(set(keys)) == len(keys) >= len(LLMS) * len(PROFILES) + 2
    files = [path for path in hostile.folder.rglob("*") if path.is_file()]
    assert any(b"VLLM_API_KEY" in path.read_bytes() for path in files if path.suffix == ".log")
    for path in files:
        content = path.read_bytes()
        assert not [key for key in keys if key.encode() in content], path


def test_the_store_has_the_ids_as_they_were_written(hostile) -> None:
    query = hostile.query
    sql = "SELECT DISTINCT llm_id, gpu_profile_id, workload_id, scenario_id FROM point"
    cells = {(llm, profile, WORKLOAD, SCENARIO) for llm in LLMS for profile in PROFILES}
    assert set(query(sql)) == cells
    assert query("SELECT trace_id FROM trace") == [(TRACE,)]
    workloads = {(WORKLOAD, TRACE), (USE_CASE, None)}
    assert set(query("SELECT workload_id, trace_id FROM workload")) == workloads
    assert set(query("SELECT slo_id FROM slo")) == {(name,) for name in SLOS}
    assert set(query("SELECT DISTINCT slo_id, llm_id FROM recommendation")) == {
        (slo, llm) for slo in SLOS for llm in LLMS
    }
    point = pd.read_parquet(hostile.folder / "results/studies/replicas/point.parquet")
    assert set(point["variant_id"]) == {"default", VARIANT}


def test_every_file_lies_where_results_lie_and_has_a_plain_name(hostile) -> None:
    assert os.listdir(hostile.folder.parent) == ["project"]  # noqa: PTH208
    # Nothing was executed.
    assert not [path for path in hostile.folder.rglob("*") if path.name == "owned"]
    assert not Path("owned").exists()
    top = {path.name for path in hostile.folder.iterdir()}
    assert top - MADE == {*("environment.yml", "workflow", "scripts", "config", "resources")}
    cell = f"benchmarks/measured/~2E./{file_name(PROFILES[0])}/{file_name(WORKLOAD)}"
    folders = {path.name for path in (hostile.folder / "results" / cell).iterdir()}
    assert folders == {file_name(SCENARIO), f"{file_name(SCENARIO)}@{file_name(VARIANT)}"}
    for made in ("results", "logs"):
        for path in (hostile.folder / made).rglob("*"):
            assert re.fullmatch(r"[A-Za-z0-9._+~@-]+", path.name), path
    slurm_log = "_".join(map(file_name, (*LLMS[:1], PROFILES[0], WORKLOAD, SCENARIO, VARIANT)))
    assert len(slurm_log) < 255


def test_a_second_run_has_nothing_to_do(hostile) -> None:
    done = hostile.snakemake("--cores", "2", "all", "studies")
    assert done.returncode == 0, done.stderr
    assert "Nothing to be done" in done.stderr


PAGES = {
    # All but the workload that no cell uses.
    "report/index.html": [each for each in IDS if each != USE_CASE],
    f"report/traces/{file_name(TRACE)}.html": (TRACE, WORKLOAD, *TRACED),
    "studies/replicas/index.html": (LLMS[1], PROFILES[0], VARIANT),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_show_ids_as_text_and_neither_run_nor_load_anything(hostile, name: str) -> None:
    html = (hostile.folder / "results" / name).read_text(encoding="utf-8")
    page, is_report = Page(html), name == "report/index.html"
    # The page's policy names the SHA-256 of each script, of tables and of cards; others are data.
    data = html.count('<script type="application/json">')
    assert html.count("script-src") == 1
    assert html.count("<script") - data == html.count("'sha256-") == 1 + is_report
    for given in PAGES[name]:
        if given != VARIANT or "studies" in name:  # the report shows the default variant
            assert given in page.text, given
    for tag, attributes in page.elements:
        assert tag not in ACTIVE - (OWN if is_report else {"script"})
        for key, value in attributes.items():
            assert not key.startswith("on"), (tag, key)
            if key in ("href", "src", "xlink:href", "action"):
                is_page = key == "href" and re.fullmatch(r"traces/[\w.+~-]+\.html", value, re.A)
                assert value.startswith("#") or is_page, (tag, key, value)
            assert "javascript:" not in (value or "") and "url(http" not in (value or "")
    assert "@import" not in page.text and "url(http" not in page.text


def test_every_figure_is_sound_xml_with_the_names_as_text(hostile) -> None:
    figures = sorted((hostile.folder / "results").rglob("*.svg"))
    assert len(figures) > len(LLMS)
    drawn = ""
    for path in figures:
        root = ElementTree.parse(path)
        drawn += "".join(root.getroot().itertext())
        for element in root.iter():
            assert element.tag.rpartition("}")[2] not in ACTIVE
            assert not any(key.lower().startswith("on") for key in element.attrib)
    for given in (*PROFILES, *LLMS):
        assert given in drawn, given


def test_the_command_line_answers_by_id(hostile, tmp_path) -> None:
    limits = ("--users", "4", "--nttft-ms", "1000", "--itl-ms", "1000")
    shown = hostile.sextant("show")
    assert shown.returncode == 0, shown.stderr
    named = ("--licence", "CC0-1.0", "--attribution", "<b>nobody</b>", "--llms")
    named = (*named, str(hostile.sheet("llms")), "--out", str(tmp_path))
    done = hostile.sextant("export-characterization", *named)
    assert done.returncode == 0, done.stderr
    exported = load_folder(tmp_path).points
    for llm in LLMS:
        assert llm in shown.stdout
        assert llm in set(exported["llm_id"])
        done = hostile.sextant("recommend", f"--llm={llm}", *limits)
        assert done.returncode == 0, done.stderr
        assert llm in done.stdout
        told = (f"--llm={llm}", f"--gpu-profile={PROFILES[0]}", "--users-per-replica", "1")
        done = hostile.sextant("explain", *told)
        assert done.returncode == 0, done.stderr
        assert PROFILES[0] in done.stdout


def test_a_download_lies_below_the_results_whatever_the_registry_calls_it(tmp_path) -> None:
    project = Project(tmp_path)
    name = "../evil $(x){y}<results>"
    row = f'"{name}",1,https://example.org/d,{"0" * 64},CC0,"x/$(id) {{q}}%j.csv.gz",nobody\n'
    registry = project.folder / "resources" / "registry.csv"
    registry.write_text(registry.read_text() + row)
    trace = ("azure-2023-conv-sample", name, "azure")
    write(project, "traces", "trace_id dataset format", trace)
    done = project.snakemake("--dry-run", "--cores", "1")
    assert done.returncode == 0, done.stderr
    place = f"results/downloads/{file_name(name)}/~24~28id~29~20~7Bq~7D~25j.csv.gz"
    assert f"output: {place}\n" in done.stdout
