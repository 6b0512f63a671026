"""The report of a trace: traces whose figures are known by construction, and bare ones."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy

from html_page import Page, figure_texts, figures
from sextant.base.errors import InputError
from sextant.base.files import write_json, write_parquet
from sextant.base.sheets import file_name
from sextant.pages import charts
from sextant.pages.page import json_path
from sextant.report.trace_characterize import write_trace_report
from sextant.report.trace_file import explained
from sextant.trace.trace_format import TRACE_COLUMNS, require_trace
from sextant.workload.arrivals import measure_arrivals
from sextant.workload.fit import WorkloadFiles, fit_workload
from sextant.workload.generators import Mirrored
from sextant.workload.request_model import LengthCaps

EVIL = '<script>alert("$x$")</script>'
HOUR_S, DAY_S = 3600, 86400
_TYPES = {"string": "string", "int32": "Int32", "double": "Float64", "bool": "boolean"}


def write_trace(path: Path, arrival_s, origin: dict | None = None, **columns) -> Path:
    """Write a trace in the contract; what is not given is null, and lengths are 10 and 5."""
    given = {"input_tokens": 10, "output_tokens": 5, "status": "ok", **columns}
    frame = pd.DataFrame({"arrival_s": np.asarray(arrival_s, float), **given})
    frame["request_id"] = frame.index.astype(str)
    for name, kind in TRACE_COLUMNS.items():
        values = frame[name] if name in frame else pd.Series([None] * len(frame))
        frame[name] = values.astype(_TYPES[str(kind)])
    table = pa.Table.from_pandas(frame[list(TRACE_COLUMNS)], preserve_index=False)
    write_parquet(path, table, origin or {})
    return path


def fit(trace: Path, folder: Path, **options) -> Path:
    fit_workload(trace, WorkloadFiles.in_folder(folder), **options)
    return folder


def report(trace: Path, *workloads: Path, is_drawn: bool = False) -> tuple[dict, str]:
    """Write a report and return its JSON and its page, by default with empty figures."""
    html, out = trace.with_suffix(".html"), trace.with_suffix(".json")
    with pytest.MonkeyPatch.context() as patch:
        if not is_drawn:  # which takes longer than all else
            empty = lambda _, file, **form: file.write("<svg></svg>")  # noqa: E731
            patch.setattr(charts.Figure, "savefig", empty)
        write_trace_report(trace, workloads, html, out, seed=0)
    return json.loads(out.read_text()), html.read_text()


@pytest.fixture(scope="module")
def months(tmp_path_factory) -> tuple[pd.DataFrame, dict, str]:
    """Fifteen days from a Monday: people chat at 15:00 on workdays, programs at any hour."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("months")
    parts = []
    for llm, n_failed_of_5 in (("small", 1), (EVIL, 0)):
        hours = np.arange(15 * 24)
        is_busy = (hours // 24 % 7 < 5) & (hours % 24 == 15)
        for service, counts in (
            ("chat", np.where(is_busy, 100, np.where(hours // 24 % 7 < 5, 2, 0))),
            ("api", rng.poisson(4, len(hours))),
        ):
            start_s = np.repeat(hours * HOUR_S, counts)
            arrival_s = start_s + rng.uniform(0, HOUR_S, len(start_s))
            is_failed = np.arange(len(start_s)) % 5 < n_failed_of_5
            given = {"arrival_s": arrival_s, "llm": llm, "service": service}
            given["status"] = np.where(is_failed, "failed", "ok")
            given["input_tokens"] = rng.integers(1, 2000, len(start_s))
            given["output_tokens"] = np.where(is_failed, 0, rng.integers(1, 500, len(start_s)))
            parts.append(pd.DataFrame(given))
    frame = pd.concat(parts).sort_values("arrival_s", ignore_index=True)
    frame.loc[0, "arrival_s"] = 0.0
    columns = {name: frame[name] for name in frame if name != "arrival_s"}
    origin = {"start_time": "2024-01-01"}
    trace = write_trace(folder / "months.parquet", frame["arrival_s"], origin, **columns)
    counted = {"n_rejected": 3, "n_rejected_by_reason": {"tokens: <b>no number</b>": 3}}
    write_json(folder / "months.report.json", counted | {"n_moved": 12, "most_late_s": 5.0})
    return frame, *report(trace, fit(trace, folder / "workload"), is_drawn=True)


def test_overview_counts_requests_and_failures_by_llm_and_service(months):
    frame, found, html = months
    truth = frame.groupby(["llm", "service"])["status"].agg(
        n_requests="size", n_failed=lambda status: (status == "failed").sum()
    )
    for group in found["overview"]["groups"]:
        expected = truth.loc[(group["llm"], group["service"])]
        assert group["n_requests"] == expected["n_requests"]
        assert group["n_failed"] == expected["n_failed"]
    assert found["overview"]["n_rejected"] == 3
    assert "3 malformed rows" in Page(html).text
    assert "12 rows stood after one that arrived later, by up to 5 s" in Page(html).text


def test_profiles_tell_people_from_programs(months):
    _, found, html = months
    groups = {group["name"]: group for group in found["traffic"]["groups"]}
    chat, api = groups["small · chat"], groups["small · api"]
    busiest = int(np.argmax(chat["daily"]["requests_mean"]))
    assert chat["daily"]["hour"][busiest] == 15
    assert chat["daily"]["requests_median"][busiest] == 100
    assert chat["hour_of_day_fraction"] > 0.5 > 0.02 > api["hour_of_day_fraction"]
    weekly = pd.DataFrame(chat["weekly"])
    assert (weekly.loc[weekly["hour_of_week"] >= 120, "requests_mean"] == 0).all()
    assert "15:00" in found["takeaways"]["traffic"]
    assert {"Requests per hour", "Hour of the day", "Sun"} <= {*figure_texts(html)}
    assert any(text.startswith("Days since 2024-01-01") for text in figure_texts(html))


def test_reliability_names_the_worst_and_the_best(months):
    _, found, _ = months
    groups = {group["name"]: group["summary"] for group in found["reliability"]["groups"]}
    assert groups["small · chat"]["failure_fraction"] == pytest.approx(0.2, abs=0.01)
    assert groups[f"{EVIL} · chat"]["failure_fraction"] == 0
    assert "20" in found["takeaways"]["reliability"] and "to" in found["takeaways"]["reliability"]


def test_a_page_is_whole_and_escapes_every_name(months):
    _, _, html = months
    page = Page(html)
    assert all(link.startswith("#") for link in page.links)
    assert "b" not in page.tags
    assert html.count("<script") == 1 == html.count("'sha256-")  # that of tables that sort
    assert EVIL in page.text and "url(http" not in html
    assert len(figures(html)) >= 7 and "–: constant" in page.text


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    rng = np.random.default_rng(1)
    arrival_s = np.sort(rng.uniform(0, HOUR_S, 400))
    lengths = {name: rng.integers(1, 900, 400) for name in ("input_tokens", "output_tokens")}
    trace = write_trace(tmp_path / "t.parquet", arrival_s, **lengths)
    workload = fit(trace, tmp_path / "workload")
    first, again = (report(trace, workload, is_drawn=True) for _ in range(2))
    assert first == again


def test_the_hours_of_one_day_are_told_though_days_cannot_be(tmp_path):
    hour = np.repeat(np.arange(24), np.where(np.arange(24) == 14, 500, 100))
    arrival_s = np.sort(HOUR_S * (hour + np.random.default_rng(2).uniform(0, 1, len(hour))))
    found, _ = report(write_trace(tmp_path / "day.parquet", [0.0, *arrival_s, 24 * HOUR_S]))
    said = found["takeaways"]["traffic"]
    assert "hour 14 from the start, has 5 times the requests of the quietest, hour 1 from" in said
    assert "Whether that repeats every day cannot be seen in 1 day: it takes 2 days" in said


def test_burstiness_is_that_of_the_arrivals(tmp_path):
    rng = np.random.default_rng(3)
    arrival_s = np.cumsum(rng.gamma(0.25, 4.0, 7200))
    trace = write_trace(tmp_path / "bursty.parquet", arrival_s)
    found, html = report(trace, fit(trace, tmp_path / "workload"), is_drawn=True)
    (group,) = found["burstiness"]["groups"]
    # A Gamma shape of 0.25 is a coefficient of variation of 2.
    assert group["cv"]["median"] == pytest.approx(2, rel=0.05)
    assert found["burstiness"]["whole"][0]["alpha"] == pytest.approx(0.25, rel=0.05)
    windows = pd.DataFrame(group["windows"])
    covered = windows["beta_lo_s"].lt(4) & windows["beta_hi_s"].gt(4)
    assert covered.sum() >= len(windows) - 1
    assert "burstier than a Poisson process" in found["takeaways"]["burstiness"]
    assert {"Shape α", "Scale β (s)"} <= {*figure_texts(html)}


def test_what_needs_more_than_a_short_trace_has_is_left_out(tmp_path):
    arrival_s = np.cumsum(np.random.default_rng(4).exponential(1.0, 360))
    found, html = report(write_trace(tmp_path / "short.parquet", arrival_s), is_drawn=True)
    said = found["takeaways"]["burstiness"]
    assert said.startswith("Over the whole trace, ") and "window of 20 minutes" not in said
    # One window is a dot: no figure over time; and rows of zeros are no table.
    assert not {"Shape α", "Scale β (s)"} & {*figure_texts(html)}
    assert "Requests never double within 5 minutes and 10 minutes." in Page(html).text
    assert f"<h1>{found['takeaways']['overview']}</h1>" in html
    assert html.count(found["takeaways"]["overview"]) == 1


def test_a_coarse_clock_leaves_burstiness_unknown(tmp_path):
    arrival_s = np.sort(np.random.default_rng(4).integers(0, 1200, 9000) * 3)
    found, _ = report(write_trace(tmp_path / "coarse.parquet", arrival_s))
    assert found["burstiness"]["groups"][0]["clock_step_s"] == 3
    said = found["takeaways"]["burstiness"]
    assert "not known" in said and ("of 3 s hides" in said or "steps by 3 seconds" in said)


@pytest.mark.parametrize(
    ("name", "arrival_s", "columns", "said"),
    [
        ("one", [0], {}, {"overview": "1 request, all at one moment", "lengths": "alike"}),
        ("two", [0, 9], {}, {"burstiness": "fewer than 30 gaps", "parameters": "No two"}),
        ("same", [0] * 99, {}, {"burstiness": "at the same time", "traffic": "at one moment"}),
        ("regular", range(600), {}, {"burstiness": "all gaps are equal"}),
        ("flat", range(0, 600, 2), {"input_tokens": range(1, 301)}, {"parameters": "No two"}),
        ("failed", range(50), {"status": "failed", "output_tokens": 0},
         {"lengths": "No request succeeded", "reliability": "100", "parameters": "No request"}),
        ("few", [0, 50, 60, 200], {"input_tokens": [1, 2, 3, 4], "output_tokens": [2, 1, 3, 4]},
         {"parameters": "no more than chance"}),
    ],
)  # fmt: skip
def test_a_bare_trace_says_what_cannot_be_known(tmp_path, name, arrival_s, columns, said):
    trace = write_trace(tmp_path / f"{name}.parquet", list(arrival_s), **columns)
    workloads = [fit(trace, tmp_path / "workload")] if name in ("one", "few") else []
    found, html = report(trace, *workloads, is_drawn=name == "one")
    for section, words in said.items():
        assert words in found["takeaways"][section]
        assert words in Page(html).text
    assert figures(html) or name != "one"


def test_a_workload_of_another_trace_is_named_so(tmp_path):
    trace = write_trace(tmp_path / "t.parquet", range(4), origin={"inputs_sha256": {"source": "a"}})
    workload = fit(trace, tmp_path / "workload")
    assert "another trace" not in Page(report(trace, workload)[1]).text
    other = write_trace(tmp_path / "o.parquet", range(4), origin={"inputs_sha256": {"source": "b"}})
    assert "fitted to another trace" in Page(report(other, workload)[1]).text


def test_what_groups_explain_is_an_analysis_of_variance():
    rng = np.random.default_rng(7)
    groups = rng.integers(0, 4, 200)
    values = groups + rng.normal(0, 2, 200)
    found = explained(values, groups)
    truth = scipy.stats.f_oneway(*(values[groups == label] for label in range(4)))
    assert found[1] == pytest.approx(truth.pvalue)
    # By hand: sums of squares 4 within (2 degrees of freedom) and 104 in all (3).
    fraction, _ = explained(np.array([0, 2, 10, 12.0]), np.array([0, 0, 1, 1]))
    assert fraction == pytest.approx(1 - (4 / 2) / (104 / 3))
    assert explained(np.ones(5), np.arange(5)) is None


def test_what_is_no_trace_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        require_trace(tmp_path / "none.parquet")
    text = tmp_path / "text.parquet"
    text.write_text("no Parquet")
    with pytest.raises(InputError, match=r"text\.parquet: this is no .*Fix: .*`sextant ingest`"):
        require_trace(text)
    with pytest.raises(InputError, match="no rows"):
        require_trace(write_trace(tmp_path / "empty.parquet", []))
    whole = pa.table({"arrival_s": [0.0], "input_tokens": [1]})
    write_parquet(tmp_path / "short.parquet", whole, {})
    with pytest.raises(InputError, match="'request_id': column missing"):
        require_trace(tmp_path / "short.parquet")


def test_every_workload_of_a_trace_has_its_fidelity_and_shared_arrivals_are_shown_once(tmp_path):
    lengths = np.arange(1, 401)
    trace = write_trace(tmp_path / "t.parquet", np.sort(lengths**2 % 997), input_tokens=lengths)
    whole = fit(trace, tmp_path / "whole")
    capped = fit(trace, tmp_path / "<b>capped", caps=LengthCaps(max_input_tokens=100))
    coarse = fit(trace, tmp_path / "coarse", n_bins=2)
    found, html = report(trace, whole, capped, coarse)
    distances = {name: own["ks"]["input_tokens"] for name, own in found["fidelity"].items()}
    assert list(distances) == ["whole", "<b>capped", "coarse"]
    assert found["fidelity"]["<b>capped"]["caps"]["input_tokens"] == 100
    assert "caps input_tokens at 100 (75 % of the requests have more)" in Page(html).text
    # Two bins stand for 200 distinct lengths each: half of a bin is off.
    assert distances["coarse"] == pytest.approx(0.25, abs=0.01)
    assert distances["whole"] < 0.02 and distances["<b>capped"] < 0.02
    page = Page(html)
    for name in distances:
        assert f"Fidelity of {name}" in page.text
        assert found["takeaways"][f"fidelity-{file_name(name)}"].startswith(f"{name}: ")
        assert f"{name}/validation.json" in found["provenance"]["inputs_sha256"]
    assert "b" not in page.tags
    (arrivals,) = found["burstiness"]["whole"]
    assert arrivals["workloads"] == list(distances)


def test_a_profile_that_passes_and_a_gamma_process_that_does_not_are_in_the_headline(tmp_path):
    steps = tuple(1200.0 * number for number in range(6))
    counts = (1000, 4000, 1000, 4000, 1000, 4000)
    times = Mirrored(steps, (1200.0,) * 6, counts, (0.5,) * 6).times(seed=1)
    trace = write_trace(tmp_path / "t.parquet", times, input_tokens=np.arange(len(times)) % 50 + 1)
    found, html = report(trace, fit(trace, tmp_path / "steps"))
    assert found["arrivals"]["trace"] == measure_arrivals(times)
    own = found["arrivals"]["models"]["steps"]
    assert own["model"] == "rescaled" and own["models"]["rescaled"]["reason"] is None
    assert own["models"]["rescaled"]["errors"]["dispersion_1200s"] == pytest.approx(0.0, abs=0.1)
    assert own["models"]["gamma"]["errors"]["dispersion_1200s"] < -0.9
    said = found["takeaways"]["arrivals"]
    assert "steps: the model of the arrivals (a rate profile with Gamma gaps) passes" in said
    assert "one Gamma process is rejected (the dispersion of counts over" in said
    text = Page(html).text
    assert "Why steps has these arrivals: one Gamma process: the dispersion" in text


def _without_validation(workload: Path) -> Path:
    (workload / "validation.json").unlink()
    return workload


BROKEN = {
    r"requests\.parquet: is not a folder\. Fix: give the folder": lambda w: w / "requests.parquet",
    r"none: there is no such folder": lambda w: w / "none",
    r"arrivals\.json: not JSON .*Fix: fit the workload again": lambda w: _arrivals(w, "{"),
    r"arrivals\.json: not a JSON object": lambda w: _arrivals(w, "[]"),
    r"arrivals\.json: not JSON \(": lambda w: _arrivals(w, "\xff"),
    r"field 'alpha': the field is missing": lambda w: _arrivals(w, "{}"),
    r"field 'beta_s': 'x' is not a number": lambda w: _changed(w, beta_s="x"),
    r"field 'alpha_lo': the number is missing": lambda w: _changed(w, alpha=1.0),
    r"field 'cv': nan is not a number": lambda w: _changed(w, cv=float("nan")),
    r"json, field 'fit': is not a JSON object": lambda w: _changed(w, fit=7),
    r"'max_input_tokens': '9' is not a num": lambda w: _changed(w, fit={"max_input_tokens": "9"}),
    r"has no fidelity to a trace\. Fix: give the folder": _without_validation,
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_workload_that_cannot_be_shown_is_named(tmp_path, said):
    trace = write_trace(tmp_path / "t.parquet", range(4))
    given = BROKEN[said](fit(trace, tmp_path / "workload"))
    with pytest.raises(InputError, match=said):
        report(trace, given)
    assert not trace.with_suffix(".html").exists()


def _arrivals(workload: Path, text: str) -> Path:
    (workload / "arrivals.json").write_text(text, encoding="latin-1")
    return workload


def _changed(workload: Path, **fields) -> Path:
    stored = json.loads((workload / "arrivals.json").read_text())
    return _arrivals(workload, json.dumps(stored | fields))


def test_no_page_takes_the_place_of_an_input(tmp_path, monkeypatch):
    trace = write_trace(tmp_path / "t.html", range(4))
    workload = fit(trace, tmp_path / "workload")
    (tmp_path / "t.report.json").write_text('{"n_rejected": 0}')
    monkeypatch.chdir(tmp_path)

    def refused(html: str, out: str, said: str) -> None:
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(InputError, match=said):
            write_trace_report(trace, [workload], html, out, seed=0)
        assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    refused("t.html", "t.json", r"t\.html: the output would replace an input\. Fix: give the page")
    refused("t.report.html", "t.report.json", r"t\.report\.json: the output would replace an input")
    refused("p.html", "p.html", r"p\.html: the output would replace the page")
    refused("r.json", "r.json", r"r\.json: does not end in \.html")
    refused(".", ".json", r"\.: is a folder")
    refused("p.html", "workload/validation.json", r"validation\.json: the output would replace an")
    assert json_path("a/p.html") == Path("a/p.json")
    with pytest.raises(InputError, match=r"\.: is a folder"):
        json_path(".")


def test_more_groups_than_are_shown_are_said_to_be_left_out(tmp_path):
    rng = np.random.default_rng(8)
    arrival_s = np.sort(rng.uniform(0, HOUR_S, 900))
    status = np.where(rng.random(900) < 0.2, "failed", "ok")
    llm = rng.permutation(np.arange(900) % 8).astype(str)
    _, html = report(write_trace(tmp_path / "t.parquet", arrival_s, llm=llm, status=status))
    said = "reliability are of the 6 most frequent of 8 LLMs and services"
    assert said in Page(html).text
    few = write_trace(tmp_path / "f.parquet", arrival_s, llm="a", status=status)
    assert "most frequent" not in Page(report(few)[1]).text
