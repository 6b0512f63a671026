"""`sextant compare`: load runs by their requests, stores and reports by what they recommend."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from cells import request, write_cell
from sextant.cli.app import app
from sextant.points.run import SentRequests
from sextant.points.store import build_store
from sextant.report.compare import compare_levels
from sextant.report.write import write_report

N, N_TOKENS = 200, 12


def requests(seed: int, *, ttft: float = 1.0, itl: float = 1.0, level: float = 4.0, n: int = N):
    """Return requests one after the other whose latencies vary by a tenth."""
    rng, start_s = np.random.default_rng(seed), 0.0
    for number in range(n):
        first_ms = ttft * 50 * rng.gamma(100, 0.01)
        gaps_ms = itl * 10 * rng.gamma(100, 0.01, N_TOKENS - 1)
        offsets_ms = np.cumsum([first_ms, *gaps_ms])
        times = {"first_token_s": start_s + first_ms / 1e3, "token_offsets_ms": offsets_ms.tolist()}
        times |= {"scheduled_s": start_s, "sent_s": start_s}
        start_s += offsets_ms[-1] / 1e3
        times |= {"last_token_s": start_s, "output_tokens": N_TOKENS}
        yield request(level, request_id=str(number), **times)


def compare(*arguments, exit_code: int = 0) -> str:
    done = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    if exit_code:
        assert done.exception is not None
        return str(done.exception)
    assert done.exit_code == 0, done.output
    return done.stdout


def runs(tmp_path, a, b, **of_b):
    folders = [tmp_path / "a", tmp_path / "b"]
    write_cell(folders[0], list(a), durations_s={4.0: 32.0})
    write_cell(folders[1], list(b), durations_s={4.0: 32.0}, **of_b)
    return folders


def test_a_slower_run_differs_where_it_is_slower(tmp_path):
    folders = runs(
        tmp_path,
        requests(1),
        requests(2, itl=1.2),
        run={"requests": SentRequests(prompts="a text")},
    )
    found = json.loads(compare(*folders, "--format", "json"))
    (level,) = found["levels"]
    rows = {row["figure"]: row for row in level["rows"]}
    for figure in ("ITL mean, ms", "ITL p95, ms", "TPOT p50, ms", "E2E mean, ms"):
        row = rows[figure]
        assert row["is_real"] and row["low"] > 1
        assert row["low"] < row["ratio"] < row["high"]
    assert rows["ITL mean, ms"]["ratio"] == pytest.approx(1.2, rel=0.01)
    assert rows["TTFT mean, ms"]["is_real"] is False and rows["TTFT p50, ms"]["is_real"] is False
    assert found["differs"] == {"prompts": [None, "a text"]}
    text = compare(*folders)
    assert "prompts: None in A, a text in B" in text
    page = tmp_path / "page.html"
    compare(*folders, "--format", "html", "--out", page)
    assert "ITL mean, ms" in page.read_text() and "figures differ" in page.read_text()


def level_of(seed: int, n: int, pace: float = 0.0) -> tuple[pd.DataFrame, float]:
    """Return a level of answers; with a pace, neighbours are alike."""
    rows = pd.DataFrame(requests(seed, n=n))
    slow = np.repeat(np.random.default_rng(seed).lognormal(0, pace, n // 2 + 1), 2)[:n]
    latencies = {
        "ttft_ms": (rows["first_token_s"] - rows["sent_s"]) * 1e3 * slow,
        "e2e_ms": (rows["last_token_s"] - rows["sent_s"]) * 1e3 * slow,
        "itl_ms": rows["token_offsets_ms"].map(np.diff) * slow,
    }
    tpot_ms = (latencies["e2e_ms"] - latencies["ttft_ms"]) / (N_TOKENS - 1)
    return rows.assign(**latencies, tpot_ms=tpot_ms), rows["last_token_s"].max()


def n_different(n_pairs: int, n: int, pace: float = 0.0) -> int:
    """Return at how many pairs of equal levels a figure is called different."""
    pairs = ([level_of(2 * pair + each, n, pace) for each in (0, 1)] for pair in range(n_pairs))
    return sum(any(row.is_real for row in compare_levels(*pair)) for pair in pairs)


def test_equal_servers_seldom_differ(monkeypatch):
    """Of all figures of a level together one comparison in twenty may err."""
    monkeypatch.setattr("sextant.report.compare._N_DEALS", 400)
    assert n_different(20, 25) <= 4  # of 20, with probability 0.997 where it is one in twenty


@pytest.mark.slow
@pytest.mark.parametrize(("n", "pace"), [(25, 0.0), (60, 0.5)])
def test_of_a_thousand_equal_pairs_one_in_twenty_differs(monkeypatch, n, pace):
    monkeypatch.setattr("sextant.report.compare._N_DEALS", 400)
    assert 20 <= n_different(1000, n, pace) <= 75


def test_failures_stand_first_and_change_what_latencies_mean(tmp_path):
    refused = [
        request(4.0, request_id=f"r{number}", status="http_error", error="503", sent_s=number / 2)
        for number in range(60)
    ]
    folders = runs(tmp_path, requests(1), [*requests(2), *refused])
    text = compare(*folders)
    first = text.index("0 % of the requests failed in A, 23.1 % in B")
    assert first < text.index("differ by more than chance")
    (level,) = json.loads(compare(*folders, "--format", "json"))["levels"]
    assert level["rows"][0]["figure"] == "failed requests, share" and level["rows"][0]["is_real"]


def test_levels_of_one_run_only_and_other_ways_are_told(tmp_path):
    more = [*requests(2), *requests(3, level=8.0)]
    folders = runs(tmp_path, requests(1), more)
    assert "levels of one run only: 8" in compare(*folders)
    write_cell(tmp_path / "open", list(requests(1)), kind="open_loop")
    said = compare(folders[0], tmp_path / "open", exit_code=2)
    assert "closed_loop" in said and "open_loop" in said
    said = compare(folders[0], tmp_path / "nothing.json", exit_code=2)
    assert "only one of them is a load run" in said


KEY = {"source": "measured", "slo_id": "chat", "llm_id": "m", "predictor": "measured"}
SLO = {"slo_id": "chat", "nttft_ms": 100.0, "itl_ms": 50.0, "percentile": 50, "users": 20}


def option(profile: str, replicas: int, users: int, usd: float) -> dict:
    sizes = {"replicas": replicas, "users_per_replica": users, "usd_per_hour": usd}
    return {**KEY, "gpu_profile_id": profile, **sizes}


def store(path, *options: dict, itl_ms: float = 50.0):
    """Build a store whose options meet the SLO but those without replicas, cheapest first."""
    rows = {"slo": [SLO | {"itl_ms": itl_ms}], "recommendation": [{**options[0]}]}
    rows["candidate"] = [{"status": "meets"} | each for each in options]
    path.parent.mkdir(exist_ok=True)
    build_store(path, rows, {})
    return path


def test_a_changed_recommendation_and_why(tmp_path):
    large, small = option("large", 1, 32, 3.0), option("small", 4, 5, 4.0)
    before = store(tmp_path / "a" / "sextant.duckdb", large, small)
    cheaper = option("small", 2, 10, 2.0)
    after = store(tmp_path / "b" / "sextant.duckdb", cheaper, large, itl_ms=60.0)
    report = tmp_path / "report"
    write_report(after, report / "index.html", report / "recommendations.json", report / "f")
    for b in (after, after.parent, report, report / "recommendations.json"):
        found = json.loads(compare(before, b, "--format", "json"))
        (change,) = found["changes"]
        assert change["llm_id"] == "m" and found["n_same"] == 0
        assert (change["was"], change["is_now"]) == ("1 × large at 3 USD/h", "2 × small at 2 USD/h")
        slo, old, new = change["why"]
        assert slo == "the SLO's itl_ms was 50, is 60"
        assert old == "A's choice, large, in B: as here, but something else is cheaper"
        assert new.startswith("B's choice, small, in A: 5 users a replica in place of 10, ")
        assert new.endswith("4 replicas in place of 2 and 4 USD/h in all in place of 2")
    assert "1 recommendation changed, 0 as before" in compare(before, after)
    assert "0 recommendations changed, 1 as before" in compare(before, before)


def test_what_no_longer_fits_and_what_is_no_report(tmp_path):
    large, small = option("large", 1, 32, 3.0), option("small", 4, 5, 4.0)
    before = store(tmp_path / "a.duckdb", large, small)
    nothing = {**KEY, "gpu_profile_id": "large", "status": "does_not_fit"}
    after = store(tmp_path / "b.duckdb", small, nothing)
    text = compare(before, after)
    assert "A's choice, large, does not fit in B" in text
    (tmp_path / "x.json").write_text("{}")
    assert "is not a report" in compare(before, tmp_path / "x.json", exit_code=2)
    (tmp_path / "empty").mkdir()
    said = compare(before, tmp_path / "empty", exit_code=2)
    assert "empty: there is no store, report or load run. Fix: give a store" in said
