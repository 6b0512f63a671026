"""`sextant simulate`: its answers, and what it refuses."""

import json
from pathlib import Path

import pytest
from test_capacity import trace_file

from command import sextant
from sextant.base.errors import InputError
from sextant.capacity import simulation
from support import ROOT

MISTRAL = ROOT / "tests" / "hf_configs" / "mistral-7b" / "config.json"
SERVER = ["--hf-config", str(MISTRAL), "--gpu-profile", "1xH100-80GB", "--draws", "2"]
LENGTHS = ["--input-tokens", "1000", "--output-tokens", "50"]
RATE = ["--request-rate", "2", "--duration", "60s"]


def run(*options: str) -> str:
    return sextant("simulate", *SERVER, *options)


def test_an_open_loop_has_latencies_rates_and_intervals() -> None:
    found = json.loads(run(*LENGTHS, *RATE, "--warmup", "10s", "--format", "json"))
    assert found["ttft_ms"]["p50"] <= found["ttft_ms"]["p95"] < found["e2e_ms"]["p50"]
    assert found["throughput_tok_s"] == pytest.approx(50 * found["request_rate_rps"])
    assert found["failed_fraction"] == 0
    low, high = found["intervals"]["itl_ms"]["mean"]
    assert low < high
    assert found["n_requests"] < found["load"]["n_requests"]
    one = run("--input-tokens", "1000", "--output-tokens", "1", *RATE, "--format", "json")
    assert json.loads(one)["itl_ms"]["mean"] is None


def test_prompts_that_repeat_are_found_in_the_cache_unless_it_is_off() -> None:
    repeated = (*LENGTHS, *RATE, "--unique-prompts", "5", "--format", "json")
    warm, cold = (json.loads(run(*repeated, *off)) for off in ([], ["--no-prefix-caching"]))
    assert warm["cached_fraction"] > 0.9 > 0 == cold["cached_fraction"]
    assert warm["ttft_ms"]["mean"] < cold["ttft_ms"]["mean"]


def test_users_wait_for_their_answers_and_a_page_says_so(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run(*LENGTHS, "--users", "4", "--duration", "20s", "--format", "html", "--out", str(page))
    assert "4 users of given lengths in 20 seconds" in page.read_text()


def test_what_was_measured_of_the_llm_is_what_is_simulated(tmp_path: Path) -> None:
    probe = tmp_path / "probe.csv"
    probe.write_text("gpu_profile_id,users,ttft_ms,itl_ms\n1xH100-80GB,1,300,20\n")
    load = (*LENGTHS, "--users", "1", "--duration", "60s", "--format", "json")
    told, guessed = (json.loads(run(*load, *more)) for more in (["--probe", str(probe)], []))
    assert guessed["ttft_ms"]["mean"] < 150 and guessed["itl_ms"]["mean"] < 12
    assert told["ttft_ms"]["mean"] == pytest.approx(300, rel=0.05)
    assert told["itl_ms"]["mean"] == pytest.approx(20, rel=0.05)
    low, high = told["intervals"]["itl_ms"]["mean"]
    assert 18 < low < high < 22


def test_what_is_printed_lies_inside_of_its_interval() -> None:
    found = json.loads(run(*LENGTHS, "--users", "4", "--duration", "20s", "--format", "json"))
    for name, ends in found["intervals"].items():
        of_statistics = isinstance(ends, dict)
        values = found[name] if of_statistics else {"": found[name]}
        for statistic, (low, high) in (ends if of_statistics else {"": ends}).items():
            assert low <= values[statistic] <= high
    # Two draws that do not lie around the best estimate.
    best = json.loads(
        run(*LENGTHS, "--users", "4", "--duration", "20s", "--draws", "0", "--format", "json")
    )
    assert best["intervals"] is None and best["ttft_ms"] != found["ttft_ms"]


def test_loads_that_are_not_given_back_or_of_other_lengths_are_said(
    tmp_path: Path,
) -> None:
    probe = tmp_path / "probe.csv"
    rows = "1xH100-80GB,1,700,60,8\n1xH100-80GB,4,1000,60,30\n"
    probe.write_text(f"gpu_profile_id,users,input_tokens,ttft_ms,tpot_ms\n{rows}")
    load = (*LENGTHS, "--users", "4", "--duration", "20s", "--probe", str(probe))
    page = tmp_path / "page.html"
    found = json.loads(run(*load, "--format", "json"))
    run(*load, "--out", str(page))
    used = "Through 2 loads of --probe, measured on 1xH100-80GB."
    assert used in found["warnings"] and used in found["text"]
    (said,) = [line for line in found["warnings"] if line.startswith("No law found gives")]
    assert "measured on 1xH100-80GB: with 4 users the closest has TTFT" in said
    assert "measured 30 ms (-" in said and "--max-num-seqs" in said
    (said_lengths,) = [line for line in found["warnings"] if " of --probe has requests" in line]
    assert "1 of 2 loads" in said_lengths and "the law of a step takes them over" in said_lengths
    assert said in found["text"] and "No law found gives" in page.read_text()


def test_a_wrong_row_of_a_probe_names_the_field_of_the_file_not_the_option(tmp_path: Path) -> None:
    probe = tmp_path / "probe.csv"
    probe.write_text("gpu_profile_id,users,ttft_ms\n1xH100-80GB,0,300\n")
    with pytest.raises(InputError, match=r"probe\.csv, line 2, field 'users': 0"):
        run(*LENGTHS, "--users", "1", "--probe", str(probe))


def test_requests_too_long_are_refused_one_by_one_or_all(tmp_path: Path) -> None:
    lengths = {"input_tokens": [9, 9, 90_000], "output_tokens": [5, 5, 5]}
    path = trace_file(tmp_path / "trace.parquet", [0.0, 1, 2], **lengths)
    text = run("--trace", str(path))
    assert "1 of 3 requests has more than 32,768 tokens and is refused." in text
    with pytest.raises(InputError, match="--max-model-len"):
        run("--trace", str(path), "--max-model-len", "10", "--draws", "0")


def test_arrivals_beyond_what_is_served_are_said_first_with_the_rate_served() -> None:
    flood = ["--request-rate", "200", "--duration", "10s", "--draws", "0"]
    found = json.loads(run(*LENGTHS, *flood, "--format", "json"))
    saturation = found["saturation"]
    assert saturation["is_exceeded"]
    assert saturation["served_rps"] == pytest.approx(found["request_rate_rps"], rel=0.2)
    assert found["text"].splitlines()[1].startswith("Arrivals exceed what the replicas serve: ")
    calm = json.loads(run(*LENGTHS, *RATE, "--draws", "0", "--format", "json"))
    assert not calm["saturation"]["is_exceeded"] and "exceed" not in calm["text"]


def test_users_who_send_too_many_requests_are_named_by_their_options(monkeypatch) -> None:
    monkeypatch.setattr(simulation, "MOST_REQUESTS", 100)
    with pytest.raises(InputError, match="4 users send more than 100 requests") as error:
        run(*LENGTHS, "--users", "4", "--duration", "1h", "--draws", "0")
    assert error.value.field == "--duration" and "--users" in str(error.value.fix)


def test_a_trace_of_too_many_requests_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(simulation, "MOST_REQUESTS", 1000)
    sample = ROOT / "resources" / "traces" / "azure-2023-conv-sample.csv"
    sextant("ingest", sample, "--format", "sextant", "--out", tmp_path / "t.parquet")
    with pytest.raises(InputError, match="2,000 requests; a simulation takes 1,000") as error:
        run("--trace", tmp_path / "t.parquet", "--draws", "0")
    assert error.value.field == "--trace"


def test_an_llm_that_does_not_fit_is_refused_in_words_of_its_own_options() -> None:
    with pytest.raises(InputError, match="no GPU profile can serve mistral-7b") as error:
        run(*LENGTHS, *RATE, "--gpu-profile", "1xT4-16GB", "--dtype", "fp32")
    assert "ask about 2xT4-16GB" in str(error.value.fix)
    assert "--gpu-profiles" not in str(error.value)


def test_a_run_in_which_all_fails_says_so() -> None:
    text = run(*LENGTHS, *RATE, "--timeout-s", "0.001")
    assert "Every request is refused or times out: there are no latencies." in text
    assert "– to –" not in text


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ([*LENGTHS, *RATE, "--users", "3"], "--request-rate"),
        (
            [*LENGTHS, *RATE, "--max-num-batched-tokens", "9", "--max-num-seqs", "20"],
            "--max-num-batched-tokens",
        ),
        ([*LENGTHS, *RATE, "--ttft-ms", "p95:9"], "--ttft-ms"),
        ([*LENGTHS, *RATE, "--prefix-hit-rate", "0.5"], "--prefix-hit-rate"),
        ([*LENGTHS, *RATE, "--gpu-profile", "9xFOO"], r"--gpu-profile\b"),
    ],
)
def test_what_makes_no_sense_is_named(options: list[str], field: str) -> None:
    with pytest.raises(InputError, match=field):
        run(*options)
