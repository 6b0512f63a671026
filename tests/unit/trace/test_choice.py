"""A trace that holds several LLMs or services: one of them is chosen, or the mixture is said."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import sextant
from command import sextant as command
from sextant.api.frames import write_frame
from sextant.base.errors import InputError
from sextant.base.files import read_provenance
from sextant.base.sheets import Row, load_sheet
from sextant.experiment.experiment import choice_of, workload_definition
from sextant.experiment.loading import _check_origin
from sextant.experiment.sheets import DemandRow, WorkloadRow
from sextant.facts.slo import SLO
from sextant.fleet.sheets import read_demands
from sextant.trace.choice import (
    ALL_REQUESTS,
    TraceChoice,
    chosen_requests,
    mixture_notes,
    shares_of,
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """1,000 requests: 600 of support-8b with 100 tokens in, 400 of code-32b with 1,000."""
    number = np.arange(1000)
    is_code = number % 5 < 2
    frame = pd.DataFrame({"arrival_s": number * 4.0})
    frame = frame.assign(
        input_tokens=np.where(is_code, 1000, 100),
        output_tokens=np.where(is_code, 50, 20),
        llm=np.where(is_code, "code-32b", "support-8b"),
        service=np.where(is_code & (number % 2 == 0), "batch", "chat"),
    )
    path = tmp_path / "trace.parquet"
    write_frame(frame, path, "trace")
    return path


def test_chosen_requests_are_a_trace_of_the_same_name_and_clock(trace):
    with chosen_requests(trace, ALL_REQUESTS) as whole:
        assert whole == trace
    with chosen_requests(trace, TraceChoice(llm="code-32b")) as part:
        assert part.name == trace.name and part != trace
        rows = pd.read_parquet(part)
        assert len(rows) == 400 and set(rows["input_tokens"]) == {1000}
        assert rows["arrival_s"].iloc[-1] == pytest.approx(996 * 4.0)
        origin = read_provenance(trace)
        assert origin == {n: v for n, v in read_provenance(part).items() if n != "llm_in_trace"}
        assert read_provenance(part)["llm_in_trace"] == "code-32b"
        assert pq.read_schema(part).names == pq.read_schema(trace).names
        with pytest.raises(InputError) as error:
            raise InputError("x", file=part)
    assert not part.exists() and error.value.file == part
    with chosen_requests(trace, TraceChoice("code-32b", "batch")) as part:
        assert len(pd.read_parquet(part)) == 200
    missing = r"no request of the LLM 'gpt' and the service 'x'.*'support-8b', 'code-32b'.*'chat'"
    with (
        pytest.raises(InputError, match=missing),
        chosen_requests(trace, TraceChoice("gpt", "x")),
    ):
        pass
    # An error about the part names the trace.
    with (
        pytest.raises(InputError) as error,
        chosen_requests(trace, TraceChoice(llm="code-32b")) as part,
    ):
        raise InputError("x", file=part)
    assert error.value.file == trace


def test_the_mixture_is_said_with_the_option_that_takes_one(trace):
    llms, services = mixture_notes(trace)
    assert "the trace holds 2 LLMs: support-8b 60%, code-32b 40%; all count together." in llms
    assert "--llm-in-trace takes one" in llms
    assert "2 services: chat 80%, batch 20%" in services
    assert mixture_notes(trace, TraceChoice(llm="support-8b")) == []
    (services,) = mixture_notes(trace, TraceChoice(llm="code-32b"))
    assert "2 services: batch 50%, chat 50%" in services
    assert [share.name for share in shares_of(trace, "llm")] == ["support-8b", "code-32b"]


def test_fit_takes_one_llm_or_says_the_mixture(trace, tmp_path):
    answer = sextant.fit(trace, out=tmp_path / "all")
    assert "support-8b 60%, code-32b 40%" in str(answer) and answer.to_dict()["n_requests"] == 1000
    answer = sextant.fit(
        trace, out=tmp_path / "code", llm_in_trace="code-32b", service_in_trace="chat"
    )
    assert "LLMs" not in str(answer) and answer.to_dict()["n_requests"] == 200
    rows = pd.read_parquet(tmp_path / "code" / "requests.parquet")
    assert set(rows["input_tokens"]) == {1000}
    facts = json.loads((tmp_path / "code" / "arrivals.json").read_text())["fit"]
    assert (facts["llm_in_trace"], facts["service_in_trace"]) == ("code-32b", "chat")
    facts = json.loads((tmp_path / "all" / "arrivals.json").read_text())["fit"]
    assert "llm_in_trace" not in facts
    with pytest.raises(InputError, match="only a trace has LLMs and services"):
        sextant.fit("summarization", out=tmp_path / "u", llm_in_trace="x")


def test_commands_that_read_a_trace_have_the_same_two_options(trace, tmp_path):
    text = command("trace-report", trace, "--out", tmp_path / "all.html")
    assert "the trace holds 2 LLMs" in text
    text = command(
        "trace-report", trace, "--out", tmp_path / "a.html", "--llm-in-trace", "code-32b"
    )
    assert "2 LLMs" not in text and "llm code-32b alone" in (tmp_path / "a.html").read_text()
    assert json.loads((tmp_path / "a.json").read_text())["overview"]["n_requests"] == 400

    drawn = tmp_path / "drawn.csv"
    raw = ("sample", "--workload", trace, "--sampler", "raw", "--request-rate", 1, "-n", 50)
    assert "2 LLMs" in command(*raw, "--out", drawn)
    command(*raw, "--out", drawn, "--llm-in-trace", "code-32b")
    assert set(pd.read_csv(drawn)["input_tokens"]) == {1000}
    replay = ("sample", "--workload", "summarization", "--arrivals-from", trace, "-n", 9)
    command(*replay, "--arrivals", "replay", "--out", drawn, "--llm-in-trace", "support-8b")
    assert pd.read_csv(drawn)["arrival_s"].tolist()[:4] == [0, 4, 8, 20]
    none = ("sample", "--workload", "summarization", "--request-rate", 1, "-n", 5, "--out", drawn)
    with pytest.raises(InputError, match="no trace is read"):
        command(*none, "--llm-in-trace", "x")


@pytest.mark.parametrize(
    "name", ["fit", "sample", "trace-report", "capacity", "simulate", "recommend"]
)
def test_every_command_that_reads_a_trace_has_the_options_of_one_type(name):
    text = command(name, "--help")
    assert "--llm-in-trace" in text and "--service-in-trace" in text and "--trace-llm" not in text


def test_sheets_have_columns_for_llm_and_service(trace, tmp_path):
    sheet = tmp_path / "workloads.tsv"
    names = ("workload_id", "trace_id", "llm", "service", "max_input_tokens", "max_output_tokens")
    sheet.write_text("\t".join(names) + "\nw\tt\tcode-32b\tchat\t512\t64\n")
    (row,) = load_sheet(sheet, WorkloadRow)
    assert choice_of(row) == TraceChoice("code-32b", "chat")
    _check_origin(row, ["t"])
    row = Row({"use_case": "summarization", "llm": "x"}, 2, sheet)
    with pytest.raises(InputError, match="'llm': only a trace has LLMs and services"):
        _check_origin(row, [])

    slo = SLO("s", itl_ms=50.0, percentile=50, trace_id="t", llm="code-32b")
    assert slo.facts()["llm"] == "code-32b"
    with pytest.raises(InputError, match="'service': only a trace has LLMs and services"):
        SLO("s", itl_ms=50.0, percentile=50, users=3, service="chat")


def test_a_demand_of_the_fleet_takes_one_llm_of_a_trace(trace, tmp_path):
    demand = {"demand_id": "chat", "team": "web", "llm_id": "llama-13b", "itl_ms": 50}
    demand |= {"percentile": 50, "trace_id": "trace"}
    sheet = tmp_path / "demands.tsv"

    def read(**more):
        frame = pd.DataFrame([{**demand, **more}], dtype=object)
        frame.to_csv(sheet, sep="\t", index=False)
        (one,) = read_demands(sheet, tmp_path)
        return one

    both = read()
    assert any("2 LLMs" in note for note in both.notes)
    code = read(llm="code-32b")
    assert [length.mean for length in code.requests] == [1000, 50]
    rate_rps = code.demand.slo.request_rate_rps
    assert rate_rps == pytest.approx(0.4 * both.demand.slo.request_rate_rps, rel=0.01)
    assert not any("2 LLMs" in note for note in code.notes)
    with pytest.raises(InputError, match="line 2, field 'llm': only a trace has LLMs"):
        read(llm="x", trace_id=None, users=5)
    assert {"llm", "service"} <= set(DemandRow.__dataclass_fields__)


def test_a_cell_depends_on_the_choice_of_its_workload(tmp_path):
    row = Row({"trace_id": "t", "llm": "a", "max_input_tokens": 9, "max_output_tokens": 9}, 2, "w")
    (tmp_path / "log.csv").write_text("x")
    source = {"dataset": str(tmp_path / "log.csv"), "format": "columns", "where": "kind=chat"}
    experiment = SimpleNamespace(
        workloads={"w": row, "all": Row({**row, "llm": None}, 3, "w")},
        traces={"t": source},
        datasets={},
    )
    made_from = workload_definition(experiment, "w", 0)["workload"]
    assert (made_from["llm_in_trace"], made_from["where"]) == ("a", "kind=chat")
    assert "llm_in_trace" not in workload_definition(experiment, "all", 0)["workload"]


def test_the_page_of_a_trace_says_what_ingest_left_out(trace, tmp_path):
    report = {"n_left_out": 7, "n_left_out_by_value": {"call_type=aembedding": 7}, "n_placed": 0}
    report |= {"n_further_answers": 0, "n_accepted": 1000, "n_ids": 900, "has_no_times": False}
    report |= {"tokens_left_out": {}, "read_time_unit": "iso", "n_rejected": 0, "n_moved": 0}
    trace.with_suffix(".report.json").write_text(json.dumps(report))
    command("trace-report", trace, "--out", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert "7 × call_type=aembedding" in page and "ids repeat: 1,000 requests, 900 ids" in page
