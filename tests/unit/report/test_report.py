"""The report of a small world whose answers are worked out by hand, and of empty ones."""

import json
import random
import re
from xml.etree import ElementTree

import pytest

from chromium import browser, needs_chromium
from html_page import Page, figure_texts
from sextant.answer.option import Option
from sextant.facts import slo
from sextant.pages.blocks import as_text
from sextant.points.frame import FLOOR_MS
from sextant.points.metrics import doubts
from sextant.points.store import build_store, connect
from sextant.report.answers import REFERENCE_PREDICTORS, store_summary, verdict_cell
from sextant.report.stored import prediction_pairs, read_tables
from sextant.report.trust import prediction_figure
from sextant.report.verdicts import Verdict
from sextant.report.write import write_report
from support import needs_baselines, wait_for

CUT_OFF = """[...document.querySelectorAll("svg text")].filter(text => {
    const own = text.getBoundingClientRect(), all = text.closest("svg").getBoundingClientRect();
    return own.right > all.right + 1 || own.left < all.left - 1;
}).map(text => text.textContent)"""
"""Texts of figures that are drawn beyond their figure."""
EVIL = '<script>alert("$x$")</script>'
SLO = {"slo_id": "chat", "nttft_ms": 1.0, "itl_ms": 20.0, "percentile": 50, "users": 16}
SETTING = {
    "source": "measured",
    "workload_id": "conversation",
    "scenario_id": "users-1-8",
    "variant_id": "default",
}


def point(llm_id: str, profile_id: str, users: int, itl_ms: float | None, **more) -> dict:
    latencies = {
        f"{statistic}_{name}_ms": value
        for statistic in ("median", "p90", "p99")
        for name, value in (("ttft", 50.0), ("nttft", 0.5), ("itl", itl_ms), ("e2e", 900.0))
    }
    ids = {"llm_id": llm_id, "gpu_profile_id": profile_id, "level": users, "users": users}
    ids |= {"scenario_kind": "closed_loop", "duration_s": 10.0, "n_ok": 50, "n_failed": 0}
    latencies |= {"mean_itl_ms": itl_ms, "server_mean_itl_ms": itl_ms}
    latencies |= {"client_lag_p99_ms": 0.1, "send_lag_p99_ms": 0.1}
    return {**SETTING, **ids, "throughput_tok_s": 100.0 * users, **latencies, **more}


def of_predictor(predictor: str, llm_id: str, profile_id: str | None, **more) -> dict:
    ids = {"predictor": predictor, "llm_id": llm_id, "gpu_profile_id": profile_id}
    return {"source": "measured", "slo_id": "chat", **ids, **more}


def meets(replicas: int, users: int, usd_per_hour: float) -> dict:
    return {"replicas": replicas, "users_per_replica": users, "usd_per_hour": usd_per_hour}


def too_slow(nttft_ratio: float, itl_ratio: float) -> dict:
    ratios = {"nttft_ratio": nttft_ratio, "itl_ratio": itl_ratio}
    limit = {"status": "too_slow", "limit_ratio": max(ratios.values())}
    return {**limit, "users_per_replica": 0, "fewest_users": 1, **ratios}


ROWS = {
    "llm": [{"llm_id": name} for name in ("good", "slow", EVIL, "nobody-knows")],
    "gpu_profile": [
        {"gpu_profile_id": "small", "gpu_id": "x", "n_gpus": 1, "usd_per_hour": 0.1,
         "price_source": "some cloud", "price_as_of": "2021-03"},
        {"gpu_profile_id": "large", "gpu_id": "x", "n_gpus": 2, "usd_per_hour": 0.3},
    ],
    "slo": [SLO],
    "decision": [{name: SETTING[name] for name in ("source", "workload_id", "scenario_id")}],
    "trace": [{
        "trace_id": "sample", "n_read": 2010, "n_accepted": 2000, "n_rejected": 10,
        "n_failed": 0, "duration_s": 60.0, "source_sha256": "ab" * 32,
    }],
    "workload": [{
        "workload_id": "conversation", "trace_id": "sample", "max_input_tokens": 1024,
        "max_output_tokens": None, "n_requests": 2000, "n_clipped_input": 1018,
        "n_clipped_output": 0, "n_joint_bins": 300, "ks_input_tokens": 0.01234,
        "ks_output_tokens": 0.02,
    }],
    "feasibility": [
        {**SETTING, "llm_id": "good", "gpu_profile_id": "small", "is_feasible": True,
         "verdict": "feasible", "reason": "fits", "weight_gib": 1.5, "kv_gib": 3.0,
         "batch_weight_tokens": 26668, "n_server_starts": 1},
        {**SETTING, "llm_id": "good", "gpu_profile_id": "large", "is_feasible": False,
         "verdict": "heads_cannot_be_split", "reason": "unsupported: 3 heads",
         "weight_gib": 1.5, "kv_gib": 6.0, "batch_weight_tokens": None, "n_server_starts": 0},
    ],
    "point": [
        point("good", "small", 1, 10.0, energy_per_output_token_j=5.0),
        point("good", "small", 8, 15.0, n_ok=398, n_failed=2, median_itl_lo_ms=14.0),
        point("good", "large", 1, 5.0, n_ok=19),
        point("good", "large", 8, 8.0, client_lag_p99_ms=0.81),
        point("slow", "small", 1, 60.0),
        point("slow", "large", 1, 36.0),
    ],
    "candidate": [
        of_predictor("measured", "good", "small", status="meets", **meets(2, 8, 0.2)),
        of_predictor("measured", "good", "large", status="meets", **meets(2, 8, 0.6)),
        of_predictor("measured", "slow", "small", **too_slow(0.5, 3.0)),
        of_predictor("measured", "slow", "large", **too_slow(0.5, 1.8)),
        of_predictor("llm_pilot", EVIL, "small", **too_slow(4.0, 0.5)),
        of_predictor("llm_pilot", EVIL, "large", status="meets", **meets(4, 4, 1.2)),
    ],
    "recommendation": [
        of_predictor("measured", "good", "small", **meets(2, 8, 0.2), is_success=True, overspend=0,
                     probability_met=0.934),
        of_predictor("measured", "slow", None),
        of_predictor("llm_pilot", "good", "large", **meets(2, 8, 0.6), is_success=True,
                     overspend=2.0),
        of_predictor("llm_pilot", "slow", "large", **meets(1, 16, 0.3)),
        of_predictor("llm_pilot", EVIL, "large", **meets(4, 4, 1.2)),
    ],
    "prediction": [
        of_predictor("llm_pilot", "good", "small", users=1, nttft_ms=0.4, itl_ms=9.0, fold="good"),
        of_predictor("llm_pilot", EVIL, "large", users=1, nttft_ms=0.4, itl_ms=9.0, fold="all"),
    ],
    "score": [
        {"source": "measured", "slo_id": "chat", "predictor": "measured", "n_llms": 1,
         "success_rate": 1.0, "overspend": 0.0, "so_score": 1.0, "n_left_out": 1},
        {"source": "measured", "slo_id": "chat", "predictor": "llm_pilot", "n_llms": 1,
         "success_rate": 1.0, "overspend": 2.0, "so_score": 0.0, "n_left_out": 1,
         "mape_nttft": 0.2, "mape_itl": float("nan"), "fit_seconds": 1.5},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Path of the store, the page's text and the JSON."""
    folder = tmp_path_factory.mktemp("report")
    return written(folder, ROWS)


def summary_text(database) -> str:
    return as_text(store_summary(database))


def written(folder, rows):
    database = folder / "x.duckdb"
    build_store(database, rows, {})
    out = folder / "out"
    write_report(database, out / "index.html", out / "x.json", out / "figures")
    html = (folder / "out" / "index.html").read_text(encoding="utf-8")
    return database, html, json.loads((folder / "out" / "x.json").read_text(encoding="utf-8"))


def answer_of(document: dict, llm_id: str) -> dict:
    (row,) = [row for row in document["recommendations"] if row["llm_id"] == llm_id]
    return row


def test_a_rate_that_is_simulated_has_that_answer_alone_and_another_a_steady_load(tmp_path):
    rate = {name: value for name, value in SLO.items() if name != "users"} | {"request_rate_rps": 2}
    key = {"source": "measured", "slo_id": "chat"}
    chosen = {"llm_id": "good", "gpu_profile_id": "small", "status": "meets", "is_chosen": True}
    chosen |= {"replicas": 3, "usd_per_hour": 0.3, "probability_met": 0.95}
    chosen |= {"n_windows": 1, "n_windows_missed_by_failure": 0}
    unknown = {"llm_id": EVIL, "status": "no_answer", "reason": "no law", "is_chosen": False}
    capacity = [{**key, **chosen}, {**key, **unknown}]
    lengths = {"mean_input_tokens": 100.0, "mean_output_tokens": 40.0}
    points = [row | lengths for row in ROWS["point"]]
    rows = ROWS | {"slo": [rate], "capacity": capacity, "point": points}
    database, html, document = written(tmp_path, rows)
    said = summary_text(database)
    assert re.search(r"good +3 × small, 0\.30 USD/h, 0\.95\n", said)
    assert "4 × large, 1.20 USD/h, as a steady load" in said and "2 × small" not in said
    assert said.count("for 2 requests a second") == 1, "an SLO is listed once"
    assert "Simulated, see Capacity below: good." in Page(html).text
    assert "good" not in {row["llm_id"] for row in document["decisions"]}


def test_nothing_of_a_rehearsal_is_called_measured(tmp_path):
    rows = {
        table: [row | {"source": "simulated"} if "source" in row else row for row in of_table]
        for table, of_table in ROWS.items()
    }
    _, html, _ = written(tmp_path, rows)
    text = Page(html).text
    assert "good (simulated): " in text and "optimum (simulated)" in text
    assert "(measured)" not in text and "Measured 4 points" not in text


def test_the_cheapest_deployment_and_what_the_next_best_costs_more(report):
    _, _, document = report
    row = answer_of(document, "good")
    assert (row["basis"], row["gpu_profile_id"], row["replicas"]) == ("measured", "small", 2)
    assert (row["users_per_replica"], row["usd_per_hour"]) == (8, 0.2)
    (alternative,) = row["alternatives"]
    assert alternative["gpu_profile_id"] == "large"
    assert alternative["extra_usd_per_hour"] == 0.4
    assert row["nearest_miss"] is None


def test_the_page_opens_with_what_to_rent_and_what_follows_from_it(report):
    _, html, document = report
    text = Page(html).text
    card = text[text.index("good (measured): 2 × small") : text.index("slow (measured): none")]
    assert "0.20 USD/h, 146 USD a month (730 h)" in card
    # 15 of 20 ms with 8 users, the most that was tried; two replicas hold just what is asked for.
    assert "ITL 15 ms (14 to unknown), limit 20 ms at p50 25 % below it; at least 16 users" in card
    assert "Load of a replica 8 users" in card
    assert "the SLO is not kept: the 1 left carries 8 users within the limits, 50 % of" in card
    assert "2 replicas × large, 0.40 USD/h more; wins below 0.10 USD/h a replica (now 0.3" in card
    assert "Probability to meet the SLO 0.93; so few requests" in card
    (found,) = [row for row in document["decisions"] if row["llm_id"] == "good"]
    assert found["headroom"]["without_one"] == {"replicas": 1, "load": 8.0, "is_kept": False}
    headings = ["What to rent", "LLM by LLM", "How much to trust", "Feasibility", "Points"]
    places = [html.index(f">{words}") for words in headings]
    assert places == sorted(places)


@needs_chromium
@pytest.mark.parametrize("width_px", [390, 1280])
def test_nothing_is_cut_off_and_the_page_does_not_scroll_sideways(tmp_path, width_px):
    names = [f"{n}xA-long-name-of-a-GPU-{kind}" for n in (1, 2, 4) for kind in "abc"]
    rows = {
        **ROWS,
        "point": [point("good", name, users, 9.0) for name in names for users in (1, 8)],
    }
    written(tmp_path, rows)
    with browser(tmp_path / "profile") as tab:
        size = {"width": width_px, "height": 800, "deviceScaleFactor": 1, "mobile": width_px < 500}
        tab.call("Emulation.setDeviceMetricsOverride", **size)
        tab.open(tmp_path / "out" / "index.html")
        assert tab.run("document.documentElement.scrollWidth") <= width_px
        assert tab.run(CUT_OFF) == []
        assert not tab.of_kind("Log.entryAdded", "Runtime.exceptionThrown")


def test_an_unmet_slo_names_the_nearest_profile_and_the_limit_it_misses(report):
    database, html, document = report
    row = answer_of(document, "slow")
    assert row["gpu_profile_id"] is None and row["alternatives"] == []
    miss = {"gpu_profile_id": "large", "limit": "itl", "ratio": 1.8, "users": 1}
    assert row["nearest_miss"] == miss
    words = "No GPU profile meets this SLO; nearest: large misses ITL by 1.8× with 1 user"
    assert words in Page(html).text
    assert "none, ITL 1.8× its limit" in summary_text(database)


def test_predicted_answers_are_only_for_llms_that_were_not_measured(report):
    _, html, document = report
    row = answer_of(document, EVIL)
    assert (row["basis"], row["predictor"], row["replicas"]) == ("predicted", "llm_pilot", 4)
    assert {held["llm_id"] for held in document["held_out"]} == {"good", "slow"}
    text = Page(html).text
    assert "predicted by llm_pilot" in text
    assert "nobody-knows not known" in text


def test_json_says_what_the_store_says(report):
    database, _, document = report
    with connect(database, read_only=True) as store:
        for key, table in (("slos", "slo"), ("scores", "score"), ("feasibility", "feasibility")):
            cursor = store.execute(f"FROM {table} ORDER BY ALL")
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            assert len(rows) == len(ROWS[table])
            for row, got in zip(rows, document[key], strict=True):
                # NaN is the one value that JSON cannot hold.
                known = {k: None if v != v else v for k, v in row.items()}
                assert got == known
    assert document["provenance"]["store"]["sextant_version"]
    assert len(document["provenance"]["inputs_sha256"]["store"]) == 64


def test_whose_prices_and_which_are_old_is_said(report):
    database, html, document = report
    old = {each["source"]: each["is_old"] for each in document["prices"]}
    assert old == {None: False, "some cloud": True}
    said = "Prices: as given (no date); some cloud (2021-03, old)."
    for line in (said, "The prices are old: some cloud, 2021-03."):
        assert line in html and line in summary_text(database)


def test_a_malicious_name_is_drawn_as_text(tmp_path):
    rows = {
        **ROWS,
        "gpu_profile": [{"gpu_profile_id": EVIL, "gpu_id": "x", "n_gpus": 1, "usd_per_hour": 1}],
        "point": [point(EVIL, EVIL, users, 9.0 + users) for users in (1, 2)],
        "slo": [{**SLO, "slo_id": EVIL, "itl_ms": 10.5}],
        "recommendation": [
            of_predictor("measured", EVIL, EVIL, **meets(8, 2, 8.0)) | {"slo_id": EVIL}
        ],
    }
    _, html, _ = written(tmp_path, rows)
    svg = html[html.index("<svg") : html.index("</svg>")]
    assert "&lt;script&gt;" in svg and html.count("<script>") == 2 and EVIL not in html
    assert EVIL in Page(svg).text and "limit 10.5 ms" in Page(html).text
    scripts = [each for tag, each in Page(html).elements if tag == "script"]
    assert sum(each.get("type") is None for each in scripts) == 2  # what if, and sorted tables


def test_the_page_needs_no_network(report):
    page = Page(report[1])
    urls = set(re.findall(r"\w+://[^\s\"'<>)]*", report[1]))
    assert urls <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert page.links
    assert all(link.startswith("#") or link == "traces/sample.html" for link in page.links)
    assert not page.tags & {"link", "img", "iframe"}
    assert not re.search(r"@import|url\((?!#)", report[1])


@needs_chromium
def test_a_question_is_changed_and_answered_in_the_page(report, tmp_path):
    answers = """[...document.querySelectorAll(".what-if")].map((each) =>
        each.hidden ? null : each.querySelector("[data-part=answer]").textContent)"""
    change = """((place, ms) => {
        const section = document.querySelectorAll(".what-if")[place];
        const data = JSON.parse(section.querySelector("script").textContent);
        const slider = section.querySelector("form").elements.itl;
        slider.value = data.limits[1].offered.indexOf(ms);
        slider.dispatchEvent(new Event("input", { bubbles: true }));
    })"""
    with browser(tmp_path) as tab:
        tab.open(report[0].parent / "out" / "index.html")
        wait_for(lambda: None not in tab.run(answers), "both sections decide")
        asked = ["2 replicas × small = 0.20 USD/h", "no GPU profile meets both limits"]
        assert tab.run(answers) == asked
        # 1 user of a small one is served within 10 ms, 8 of a large one within 8.
        tab.run(f"{change}(0, 12)")
        tab.run(f"{change}(1, 60)")
        changed = ["2 replicas × large = 0.60 USD/h", "16 replicas × small = 1.60 USD/h"]
        assert tab.run(answers) == changed
        assert not tab.of_kind("Log.entryAdded", "Runtime.exceptionThrown")


def test_a_store_gives_the_same_bytes_each_time(report, tmp_path):
    database, html, document = report
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "of another store.svg").touch()
    write_report(database, tmp_path / "a.html", tmp_path / "a.json", tmp_path / "figures")
    assert (tmp_path / "a.html").read_bytes() == html.encode()
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == document
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.json", "figures"]
    assert figures_of(tmp_path) == figures_of(database.parent / "out")


def figures_of(folder) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((folder / "figures").iterdir())}


def test_every_figure_is_a_file_too(report):
    figures = figures_of(report[0].parent / "out")
    assert list(figures) == [
        "load_chat_good_itl.svg",
        "load_chat_good_nttft.svg",
        "load_chat_script_alert_x_script_itl.svg",
        "load_chat_script_alert_x_script_nttft.svg",
        "load_chat_slow_itl.svg",
        "load_chat_slow_nttft.svg",
        "prediction_llm_pilot.svg",
    ]
    for name, svg in figures.items():
        root = ElementTree.fromstring(svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg", name
        assert "currentColor" in svg and "<image" not in svg
        assert svg in report[1], name


def test_doubtful_points_are_told(report):
    _, html, document = report
    told = {row["column"]: row for row in document["warnings"]}
    # 0.81 ms of lag exceed a tenth of 8 ms; 0.1 ms exceed no tenth here.
    first = {column: row["places"][0] for column, row in told.items()}
    assert {column: (it["gpu_profile_id"], it["levels"]) for column, it in first.items()} == {
        **{"n_failed": ("small", [8]), "n_ok": ("large", [1])},
        "client_lag_p99_ms": ("large", [8]),
    }
    assert all(row["n_points"] == 1 for row in told.values())
    assert "Requests failed; they are in no latency: 1 of 6 points." in Page(html).text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"n_ok": 20, "client_lag_p99_ms": 1.0, "send_lag_p99_ms": 5.0}, set()),
        ({"client_lag_p99_ms": 1.01}, {"client_lag_p99_ms"}),
        ({"send_lag_p99_ms": 5.01}, {"send_lag_p99_ms"}),
        ({"n_ok": 0, "n_failed": 3, "median_itl_ms": None}, {"n_ok", "n_failed"}),
        ({"n_other_processes": 1}, {"n_other_processes"}),
        ({"n_ok": None, "n_failed": None, "client_lag_p99_ms": None}, set()),
    ],
)
def test_what_makes_a_point_doubtful(values, expected):
    assert doubts(point("m", "small", 1, 10.0) | values) == expected


def test_predictions_stand_beside_the_truth_of_hidden_llms_only(report, tmp_path):
    # Points of another scenario are not what the predictor was shown.
    elsewhere = point("good", "small", 1, 99.0, scenario_id="other")
    both = written(tmp_path, {**ROWS, "point": [elsewhere, *ROWS["point"]]})
    for database, *_ in (report, both):
        tables = read_tables(database)
        (pair,) = prediction_pairs(tables, slo.SLO(**SLO), "measured", "llm_pilot")
        assert (pair["llm_id"], pair["itl_ms"], pair["true_itl_ms"]) == ("good", 9.0, 10.0)


def test_facts_of_feasibility_and_scores_are_on_the_page(report):
    text = Page(report[1]).text
    assert "traces/sample.html" in Page(report[1]).links
    assert "good ✓ 26,668 –" in text and "unsupported: 3 heads" in text
    assert "llm_pilot 100 % 200 % 0 % 20 % –" in text
    assert "✓ +200 %" in text and "1 × large, 0.30 USD/h (not judged)" in text
    assert "– USD/h" not in text  # of an LLM that no profile serves


def test_the_summary_for_a_terminal_opens_with_the_answers(report):
    lines = summary_text(report[0]).splitlines()
    assert lines[0].startswith("Limits met: chat for 2 of 3; a deployment costs 0.20 to 1.20 USD/h")
    limits = "median nTTFT ≤ 1 ms per input token and median ITL ≤ 20 ms"
    assert lines[2] == f"chat: {limits}, for 16 users"
    assert "2 LLMs on 2 GPU profiles: 6 points, 619 requests, 2 failed." in lines
    start = lines.index("  LLM                            chat")
    rows = [line for line in lines[start + 1 : start + 5] if "$" not in line]
    assert dict(line.split(maxsplit=1) for line in rows) == {
        **{"good": "≤ 2 × small, 0.20 USD/h, 0.93", "slow": "none, ITL 1.8× its limit"},
        "nobody-knows": "not known",
    }
    assert any(line.endswith("4 × large, 1.20 USD/h, predicted") for line in lines)
    assert any(line.split()[:4] == ["llm_pilot", "100", "%", "200"] for line in lines)


@pytest.mark.parametrize(
    "kept", [(), ("slo",), ("slo", "llm", "gpu_profile"), ("slo", "point"), ("slo", "score")]
)
def test_a_store_with_little_in_it_makes_a_page_that_says_so(tmp_path, kept):
    rows = {name: ROWS[name] for name in kept}
    if "score" in rows:
        note = "judged from 3 measured LLMs on"
        rows["score"] = [{**of_predictor("llm_pilot", "", None), "n_llms": 0, "note": note}]
    database, html, document = written(tmp_path, rows)
    text = Page(html).text
    assert ("nothing to recommend" in text) == ("slo" not in kept)
    assert ("No points are measured yet" in text) == ("point" not in kept)
    assert ("judged from 3 measured LLMs on" in text) == ("score" in kept)
    assert document["recommendations"] == []
    assert ("judged from 3 measured LLMs on" in summary_text(database)) == ("score" in kept)


def test_characterizations_stand_side_by_side(tmp_path):
    other = {
        table: [{**row, "source": "archive:old"} for row in ROWS[table]]
        for table in ("point", "recommendation", "candidate", "score")
    }
    both = {**ROWS, **{table: [*ROWS[table], *rows] for table, rows in other.items()}}
    database, html, document = written(tmp_path, both)
    text = Page(html).text
    assert text.index("chat · archive:old") < text.index("chat · measured")
    found = [row["source"] for row in document["recommendations"] if row["llm_id"] == "good"]
    assert sorted(found) == ["archive:old", "measured"]
    # The same LLM in two settings: figures whose ids must not collide.
    ids = Page(html).values("id")
    assert len(set(ids)) == len(ids)
    assert summary_text(database).count("for 16 users") == 2


def long_sheet(n_slos: int) -> dict:
    """Return a world whose sheet has `n_slos` SLOs: 2 nTTFT limits, the rest of it ITL limits."""
    rng = random.Random(0)
    slos = [
        {**SLO, "slo_id": f"slo-{i:02}", "nttft_ms": 1.0 + i % 2, "itl_ms": 20.0 + i // 2}
        for i in (3, *range(3), *range(4, n_slos))  # the first row is not the first by name
    ]
    copied = {
        table: [{**row, "slo_id": slo["slo_id"]} for slo in slos for row in ROWS[table]]
        for table in ("recommendation", "candidate", "prediction", "score")
    }
    scores = [row for row in copied["score"] if row["predictor"] == "llm_pilot"]
    for row in scores:
        row |= {"success_rate": 0.5, "overspend": 0.25, "so_score": 0.6}
    scores[0] |= {"success_rate": 0.0, "overspend": None, "so_score": 0.0}
    scores[1] |= {"success_rate": None, "overspend": None, "so_score": None, "n_llms": 0}
    for rows in copied.values():
        # paris measures the reference profiles first.
        rows += [{**r, "predictor": "paris"} for r in rows if r["predictor"] == "llm_pilot"]
        rng.shuffle(rows)
    return {**ROWS, **copied, "slo": slos}


def test_a_long_sheet_is_summed_up_and_only_its_first_slo_shown_in_full(tmp_path):
    database, html, document = written(tmp_path, long_sheet(8))
    printed = summary_text(database)
    assert "Cheapest deployment for the first of 8 SLOs" in printed
    assert printed.count("for 16 users") == 1
    of_first, means = [line.split() for line in printed.splitlines() if "llm_pilot" in line]
    assert of_first[:6] == ["llm_pilot", "0", "%", "–", "0", "%"]
    assert " ".join(means) == "llm_pilot 42.9 % 25 % 51.4 % 20 % –"
    text = Page(html).text
    assert "means over 8 SLOs" in text and "paris ▲ 42.9 %" in text
    assert "▲ first measures the hidden LLM on two reference GPU profiles" in text
    # 6 SLOs at S 50 %, O 25 %, S/O 60 %, one without a success, one that nobody judges.
    assert "llm_pilot 42.9 % 25 % 51.4 % 20 % –" in text
    assert text.count("recommendations for hidden LLMs") == 1
    assert "slo-03: recommendations for hidden LLMs" in text
    assert html.count("Limits: ") == 1
    names = list(figures_of(tmp_path / "out"))
    assert "prediction_llm_pilot.svg" in names
    assert sum(name.startswith("prediction") for name in names) == 2
    assert {row["slo_id"] for row in document["held_out"]} == {
        s["slo_id"] for s in document["slos"]
    }
    assert len(document["scores"]) == 24


@needs_baselines
def test_predictors_that_use_references_are_those_of_the_registry():
    from sextant.predict.predictor import PREDICTORS, predictor_class

    made = {name: predictor_class(name) for name in PREDICTORS}
    assert {name for name, make in made.items() if make.uses_references} == REFERENCE_PREDICTORS


def test_published_medians_are_counted_and_marked(tmp_path):
    nothing = dict.fromkeys(("n_ok", "n_failed", "throughput_tok_s", "median_ttft_ms"))
    published = point("good", "small", 16, 20.0, is_published_median=True, **nothing)
    _, html, document = written(tmp_path, {**ROWS, "point": [*ROWS["point"], published]})
    text = Page(html).text
    assert "Of 1 of the 7 points only the medians of nTTFT and ITL are published" in text
    assert "good small 16 – – –" in text
    # Not a doubt: nothing is known of its requests.
    assert sum(row["n_points"] for row in document["warnings"]) == 3


def test_many_profiles_make_a_matrix_of_marks(tmp_path):
    types = ("A", "B", EVIL)
    profiles = [
        {"gpu_profile_id": f"{n}x{gpu_id}", "gpu_id": gpu_id, "n_gpus": n, "usd_per_hour": n}
        for gpu_id in types
        for n in (4, 1, 2)
    ]
    reasons = {1: "memory too small (Table III)", 2: "omitted: software limits", 4: None}
    verdicts = {1: "memory_too_small", 2: "omitted", 4: "feasible"}
    cells = [
        {**SETTING, "llm_id": "good", "gpu_profile_id": f"{n}x{gpu_id}", "is_feasible": n == 4,
         "verdict": verdicts[n], "reason": reasons[n]}
        for gpu_id in types[1:] for n in (1, 2, 4)
    ]  # fmt: skip
    rows = {**ROWS, "gpu_profile": profiles, "feasibility": cells, "point": []}
    _, html, _ = written(tmp_path, rows)
    text = Page(html).text
    assert f"LLM 1x{EVIL} 2x{EVIL} 4x{EVIL} 1xA 2xA 4xA 1xB 2xB 4xB" in text
    assert "good ✗ – ✓ ✗ – ✓" in text
    assert "✓ can be served: 2. ✗ memory too small (Table III): 2. – omitted: software" in text


def test_predictions_have_a_panel_per_latency_with_its_error():
    shared = {"itl_ms": 10.0, "true_itl_ms": 10.0}
    pairs = [
        {"llm_id": llm_id, "nttft_ms": nttft_ms, "true_nttft_ms": true_ms, **shared}
        for llm_id, nttft_ms, true_ms in (("one", 1.5, 1), ("one", FLOOR_MS, 1), ("two", 2, 2))
    ]
    drawn = figure_texts(prediction_figure(pairs, "t"))
    # Mean of 50 %, 100 % and 0: a prediction of 0, which has no place on the axes, still counts.
    assert {"nTTFT: mean error 50 %", "ITL: mean error 0 %", "one", "two"} <= set(drawn)
    assert not [text for text in drawn if "e-" in text], "the axes reach down to the floor"


def test_the_cell_has_the_probability_and_below_a_half_nothing_meets():
    option = Option("1xA100-40GB", 2, 8, 8.2, 0.295)
    chat = slo.SLO(**SLO)
    cells = {
        probability: verdict_cell(
            Verdict(chat, "a", option._replace(probability_met=probability), "measured")
        )
        for probability in (0.295, 0.5, 0.93, None)
    }
    assert cells[0.295][:3] == ("none", "nearest 2 × 1xA100-40GB, 8.20 USD/h, 0.29", "bad")
    assert cells[0.5][:3] == ("2 × 1xA100-40GB", "8.20 USD/h, 0.50", "doubt")
    assert cells[0.93][:3] == ("2 × 1xA100-40GB", "8.20 USD/h, 0.93", "good")
    assert cells[None][:3] == ("2 × 1xA100-40GB", "8.20 USD/h", "good")


def test_replicas_that_only_the_levels_ask_for_are_marked_with_what_to_measure_next(report):
    database, html, _ = report
    # 8 users were the most that a replica was loaded with, 16 are asked for.
    for text in (Page(html).text, summary_text(database)):
        assert "≤ 2 × small" in text
        assert "no replica was loaded with more than 8 users, so fewer replicas may do" in text
        assert "add level 16 to the scenario" in text
    assert "levels end at 8 users" in Page(html).text
    wide = Verdict(slo.SLO(**SLO | {"users": 40}), "a", Option("x", 5, 8, 1.0), "measured", None, 8)
    assert wide.further_levels == [16, 32, 40]


def test_cuts_and_doubts_stand_in_one_line_under_the_table(report):
    _, html, _ = report
    boxes = html.split('<div class="warn">')[1:]
    (line,) = re.findall("<li>(.*?)</li>", boxes[0].split("</div>")[0])
    assert "cut to 1,024 input tokens; 50.9 % of them were longer" in line
    assert "a demonstration of the method" in line
    assert "3 of 6 points are doubtful" in line


def test_the_page_opens_with_the_finding_and_the_map_stands_before_the_table(tmp_path):
    probable = [
        row | {"probability_met": 0.934 if row["gpu_profile_id"] == "small" else 0.4}
        for row in ROWS["candidate"]
        if row["status"] == "meets"
    ]
    _, html, _ = written(tmp_path, ROWS | {"candidate": probable})
    heading = re.search("<h1>(.*?)</h1>", html)[1]
    assert heading.startswith("Limits met: chat for 2 of 3; a deployment costs 0.20 to 1.20 USD/h.")
    places = [html.index(part) for part in ("<h1>", 'class="key"', "<nav", "<svg", "<table")]
    assert places == sorted(places)
    (svg,) = figures_of(tmp_path / "out").keys() & {"price_probability_measured.svg"}
    drawn = figure_texts(figures_of(tmp_path / "out")[svg])
    assert {"Price (USD/h)", "Probability to meet the SLO", "2 × small", "chat"} <= set(drawn)


def test_no_page_says_nan(report):
    shown = report[1][report[1].index("<body>") : report[1].index("<script>")]
    assert not re.search(r"\bnan\b", Page(shown).text, re.IGNORECASE)


@needs_chromium
def test_a_table_is_sorted_by_the_column_whose_label_is_pressed(report, tmp_path):
    press = """(label => {
        const button = [...document.querySelectorAll("table.sorts button")]
            .find(each => each.textContent === label);
        button.click();
        const head = button.closest("th"), rows = [...button.closest("table").tBodies[0].rows];
        return [head.ariaSort, ...rows.map(row => row.cells[head.cellIndex].textContent)];
    })"""
    with browser(tmp_path) as tab:
        tab.open(report[0].parent / "out" / "index.html")
        names = sorted(["good", "nobody-knows", "slow", EVIL], key=lambda it: it.strip("<").lower())
        ascending = tab.run(f"{press}('LLM')")
        assert ascending[0] == "ascending" and sorted(ascending[1:]) == sorted(names)
        descending = tab.run(f"{press}('LLM')")
        assert descending == ["descending", *reversed(ascending[1:])]
        numbers = tab.run(f"{press}('ITL, median (ms)')")
        assert numbers[1:] == ["5", "8", "10", "15", "36", "60"]
        assert not tab.of_kind("Log.entryAdded", "Runtime.exceptionThrown")
