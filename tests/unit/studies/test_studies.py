"""The frame of studies: page, numbers and figures, whatever a study found."""

import json
import math
import xml.etree.ElementTree as ElementTree
from importlib import import_module

import numpy as np
import pandas as pd
import pytest

from cells import KEY, PROFILES, TOO_LARGE, failed_request, request, study_data, write_cell
from sextant.base.files import jsonable
from sextant.pages.blocks import Section, Table
from sextant.pages.page import as_page
from sextant.studies import pods, study
from sextant.studies.study import TABLES, Analysis, StudyData, part, write_study

ORIGIN = {"sextant_version": "1", "git_commit": "c", "seed": 7, "inputs_sha256": {"point": "ab"}}
SVG = "<svg><title>drawn</title></svg>"


def page(tmp_path, sections: list[Section], *cells) -> str:
    facts = study.measured_facts(study_data(tmp_path, cells))
    document = study.study_document("pods", Analysis("<b>summary</b>", {}, sections), facts, ORIGIN)
    return as_page(document)


def many(n: int, **values) -> list[dict]:
    return [request(1.0, request_id=str(place), **values) for place in range(n)]


def test_a_page_escapes_all_text_and_keeps_the_figures_as_they_are(tmp_path):
    table = Table(["<head>"], [["<cell>"]])
    section = part("<title>", "<text>\n\ntwo", SVG, table)
    cell = write_cell(tmp_path / "c", many(20), llm_id="<llm>")
    html = page(tmp_path, [section], cell)
    for word in ("b>summary", "title>", "text>", "head>", "cell>", "llm>"):
        assert f"&lt;{word.replace('>', '&gt;')}" in html
    assert SVG in html and "<p>two</p>" in html
    assert "<llm>" not in html


def test_a_page_says_what_was_measured_where_and_when(tmp_path):
    cells = [
        write_cell(tmp_path / "a", many(20)),
        write_cell(tmp_path / "b", llm_id="big", verdict=TOO_LARGE),
    ]
    html = page(tmp_path, [], *cells)
    for fact in ("measured", "big, llm", "1xGPU", "a processor × 2", "0.32.0", "2026-01-02"):
        assert f">{fact}</td>" in html
    assert ">not known</td>" in html  # the GPU driver
    assert "2 cells, 1 of them infeasible; 1 points; 20 measured requests" in html
    assert "big on 1xGPU (default): does not fit: the weights take 9.000 GiB of 8.000 GiB." in html
    assert "seed 7" in html
    assert "Read with care" not in html
    # Cells stand in the order of the sheet.
    assert list(study_data(tmp_path, cells[::-1]).feasibility["llm_id"]) == ["big", "llm"]


def test_doubts_about_points_come_before_the_findings(tmp_path):
    cell = write_cell(tmp_path / "a", [*many(19), failed_request()])
    html = page(tmp_path, [Section("Found", [])], cell)
    for words in ("Requests failed", "Fewer than 20 successful requests"):
        assert html.index(words) < html.index("Found")
    assert "llm on 1xGPU, w, s at 1)" in html


def test_numbers_are_what_json_can_say():
    value = {
        "frame": pd.DataFrame({"level": [1.0, math.inf], "x": [np.int64(3), math.nan]}),
        "array": np.array([1.5, -math.inf]),
        "pair": (True, None),
        8: pd.NA,
    }
    assert jsonable(value) == {
        "frame": [{"level": 1.0, "x": 3.0}, {"level": "inf", "x": None}],
        "array": [1.5, None],
        "pair": [True, None],
        "8": None,
    }


def write(tmp_path, name: str, cells) -> dict:
    out = tmp_path / "out"
    files = {table: out / f"{table}.parquet" for table in TABLES}
    files |= {"html": out / "index.html", "json": out / "study.json", "figures": out / "figures"}
    write_study(name, cells, {}, PROFILES, files, seed=3)
    return json.loads((out / "study.json").read_text())


def test_a_study_is_written_as_page_numbers_and_figures(tmp_path):
    cells = [
        write_cell(tmp_path / str(n), many(20), variant={"replicas": n}, variant_id=f"{n}-pods")
        for n in (1, 2)
    ]
    report = write(tmp_path, "pods", cells)
    assert (report["study"], report["title"]) == ("pods", "Throughput per pod")
    assert report["measured"]["provenance"]["seed"] == 3
    assert len(report["numbers"]["settings"]) == 1
    assert len(pd.read_parquet(tmp_path / "out" / "point.parquet")) == 2
    (figure,) = (tmp_path / "out" / "figures").iterdir()
    assert figure.name == "llm-on-1xgpu-w.svg"
    assert ElementTree.parse(figure).getroot().tag.endswith("svg")
    first = (tmp_path / "out" / "index.html").read_bytes()
    (tmp_path / "out" / "figures" / "old.svg").write_text("left")
    write(tmp_path, "pods", cells)
    assert (tmp_path / "out" / "index.html").read_bytes() == first
    assert len(list((tmp_path / "out" / "figures").iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "kind", "of_none", "of_failures"),
    [
        ("characterize", "closed_loop", "0 fit (does not fit: 1). No request", "No request was"),
        ("pareto", "batch", "No batch was served", "No batch was served"),
        ("replicas", "batch", "no gain is known", "no gain is known"),
        ("pods", "closed_loop", "nothing can be compared", "nothing can be compared"),
        ("sensitivity", "closed_loop", "No closed loop was", "0 points have the latency"),
        ("workload_choice", "open_loop", "nothing can be said", "4 cannot be judged"),
        ("burst", "burst", "nothing can be said", "nothing can be said"),
    ],
)
def test_where_nothing_was_served_that_is_all_it_says(tmp_path, name, kind, of_none, of_failures):
    none = write_cell(tmp_path / "none", verdict=TOO_LARGE, kind=kind)
    failed = write_cell(tmp_path / "failed", [failed_request(4.0)], kind=kind, llm_id="another")
    analyse = import_module(f"sextant.studies.{name}").analyse
    assert of_none in analyse(study_data(tmp_path, [none])).summary
    found = analyse(study_data(tmp_path, [none, failed]))
    assert of_failures in found.summary
    published = {"pods", "pareto"} & {name}
    assert len(published) == sum("Published" in section.title for section in found.sections)


# pods


def test_the_papers_table_gives_the_papers_figures():
    # "the relative standard deviation of throughputs per pod never exceeds 5% (2% on average)"
    found = pods.diagonals(pods.PODS_THROUGHPUT_TOK_S)
    assert 0.04 < found["relative_sd"].max() < 0.05
    assert found["relative_sd"].mean() == pytest.approx(0.02, abs=0.002)
    assert found["relative_deviation"].max() == pytest.approx(0.0656, abs=1e-4)


def test_throughput_is_divided_by_the_replicas_before_it_is_compared():
    measured = {"replicas": [1, 2, 2], "users": [4, 8, 4], "throughput_tok_s": [100.0, 220, 150]}
    points = pd.DataFrame(measured).assign(
        **KEY, level=[4, 8, 4], n_ok=50, scenario_kind="closed_loop"
    )
    nothing = pd.DataFrame()
    analysis = pods.analyse(StudyData(points, nothing, nothing, [], {}, {}))
    (setting,) = analysis.numbers["settings"]
    assert list(setting["diagonals"]["mean_tok_s"]) == [105.0]  # 100 and 110; 75 stands alone
    assert setting["diagonals"]["relative_deviation"].tolist() == pytest.approx([5 / 105])
    assert "at most 4.76" in analysis.summary
