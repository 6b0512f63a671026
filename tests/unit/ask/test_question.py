"""What a person may ask, and how mistakes are said."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sextant.ask.candidates import find_candidates
from sextant.ask.case import Case, read_case
from sextant.ask.caveats import note_named_precision
from sextant.ask.probe import read_probe, uncounted_notes
from sextant.ask.question import Question, check_question
from sextant.ask.serving import as_measured, find_llm
from sextant.ask.source import find_source, todays_sources
from sextant.base.errors import InputError
from sextant.facts.llm import load_llm
from sextant.facts.slo import SLO
from sextant.points.store import build_store, store_fact_rows
from sextant.workload.lengths import Length, RequestLengths
from support import ROOT

MISTRAL = ROOT / "tests" / "hf_configs" / "mistral-7b" / "config.json"
LIMITS = SLO("asked", nttft_ms=100.0, itl_ms=50.0, percentile=50, users=200)
ASKED = Question(LIMITS, hf_config=MISTRAL)
PROBED = load_llm(MISTRAL)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("empty"))
        return find_source(ASKED)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"llm_id": "llama-7b"}, ["--llm, --hf-config"]),
        ({"predictor": "oracle"}, ["--predictor", "roofline"]),
        ({"decision": "dice"}, ["--decision", "utility, paper"]),
        ({"kv_dtype": "int3"}, ["--kv-dtype", "fp8"]),
        ({"risk": 1.5}, ["--risk", "1.5"]),
        ({"risk": math.nan}, ["--risk", "nan"]),
        ({"risk": 0.1, "decision": "paper"}, ["--risk", "--decision utility"]),
    ],
)
def test_an_option_that_makes_no_sense_is_named(change, words) -> None:
    with pytest.raises(InputError) as raised:
        check_question(replace(ASKED, **change))
    assert all(word in str(raised.value) for word in words), raised.value


def test_an_llm_is_served_like_the_measured_ones_unless_asked_otherwise(source) -> None:
    name, llm = ASKED.llm_name, find_llm(ASKED, source.characterization)
    assert (name, llm.dtype) == ("mistral-7b", "float16")  # its config says bfloat16
    assert llm.n_parameters == 7_241_732_096
    other = find_llm(replace(ASKED, dtype="float32", kv_dtype="fp8"), source.characterization)
    assert other.weight_bytes == 2 * llm.weight_bytes
    assert 2 * other.kv_bytes_per_token == llm.kv_bytes_per_token


def test_of_a_measured_llm_nothing_is_assumed(source) -> None:
    asked = replace(ASKED, hf_config=None, llm_id="llama-7b")
    for change in ({"dtype": "float32"}, {"kv_dtype": "fp8"}, {"probe": MISTRAL}):
        with pytest.raises(InputError, match="was measured as it is"):
            find_llm(replace(asked, **change), source.characterization)


def test_a_config_with_the_name_of_another_measured_llm_is_refused(source, tmp_path) -> None:
    path = tmp_path / "llama-7b.json"
    path.write_bytes(MISTRAL.read_bytes())
    with pytest.raises(InputError, match=r"another LLM .* called 'llama-7b'.*--llm llama-7b"):
        find_llm(replace(ASKED, hf_config=path), source.characterization)


def test_the_config_of_a_measured_llm_asks_about_that_llm(source) -> None:
    config = ROOT / "resources" / "llms" / "llama-7b.json"
    asked = replace(ASKED, hf_config=config)
    name, llm = asked.llm_name, find_llm(asked, source.characterization)
    assert (name, llm) == ("llama-7b", source.characterization.llms["llama-7b"])
    assert asked.is_answered_by_points(source.characterization)
    # Described, it may be asked about as it was not measured.
    other = replace(asked, dtype="fp8")
    assert not other.is_answered_by_points(source.characterization)
    assert find_llm(other, source.characterization).weight_bytes < 0.6 * llm.weight_bytes


def test_a_measured_llm_is_served_as_it_was_measured_and_the_answer_says_so() -> None:
    requests = RequestLengths(Length(1500, 1500), Length(250, 250))
    asked = replace(ASKED, hf_config=None, requests=requests, sources=("archive:inferencex",))
    known = find_source(asked).characterization
    for llm_id, dtype, told in (
        ("meta-llama__Llama-3.1-70B", "fp8", "in fp8 and nvfp4: fp8 is assumed (--dtype chooses)"),
        ("Qwen__Qwen3-32B", "bf16", "in bf16 and fp8: bf16 is assumed (--dtype chooses)"),
    ):
        made, said = as_measured(replace(asked, llm_id=llm_id), known)
        assert made.dtype == dtype and told in said[0]
        assert read_case(replace(asked, llm_id=llm_id.replace("__", "/"))).llm_id == llm_id
    one_way = known.points["precision"].where(known.points["llm_id"] != llm_id, "fp8")
    known = replace(known, points=known.points.assign(precision=one_way))
    made, said = as_measured(replace(asked, llm_id=llm_id), known)
    assert made.dtype == "fp8"
    assert "weights in fp8, as it was measured, not in the bf16 of its config" in said[0]
    assert as_measured(replace(asked, llm_id=llm_id, dtype="int4"), known)[1] == []
    # A configuration that is given decides: one that quantizes nothing has 16 bits.
    config = ROOT / "resources" / "llms" / f"{llm_id}.json"
    made, (first, said) = as_measured(replace(asked, hf_config=config), known)
    assert first == f"{llm_id} was measured by archive:inferencex: those measurements are used."
    assert made.dtype == "bf16" and "in fp8: bf16 is assumed (--dtype" in said
    # A fleet's demand has no such option.
    assert "--" not in as_measured(replace(asked, llm_id=llm_id), known, has_options=False)[1][0]


def test_a_name_with_a_precision_that_the_config_lacks_is_said() -> None:
    llm = load_llm(MISTRAL)
    (line,) = note_named_precision(ASKED, "Mistral-7B-FP8", llm)
    assert "hf_quant_config.json" in line and "--dtype fp8" in line
    assert note_named_precision(ASKED, "Mistral-7B", llm) == []
    assert note_named_precision(replace(ASKED, dtype="fp8"), "Mistral-7B-FP8", llm) == []


def table(folder: Path, text: str) -> Path:
    path = folder / "table.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize("separator", [",", "\t"])
def test_prices_replace_the_known_and_bring_new_profiles(source, tmp_path, separator) -> None:
    rows = [("gpu_profile_id", "usd_per_hour"), ("2xH200-141GB", "9.5"), ("1xT4-16GB", "0.5")]
    path = table(tmp_path, "".join(separator.join(row) + "\n" for row in rows))
    wanted = ("2xH200-141GB", "1xT4-16GB", "1xA10-24GB")
    profiles = find_candidates(source.characterization.profiles, wanted, path)
    prices = {name: profile.usd_per_hour for name, profile in profiles.items()}
    assert prices == {"1xA10-24GB": 2.448, "1xT4-16GB": 0.5, "2xH200-141GB": 9.5}
    assert profiles["2xH200-141GB"].n_gpus == 2
    # Without names the table says what there is.
    assert set(find_candidates(source.characterization.profiles, (), path)) == {
        "2xH200-141GB",
        "1xT4-16GB",
    }
    with pytest.raises(InputError, match="1xB60-24GB has no price"):
        find_candidates(source.characterization.profiles, ("1xB60-24GB",), None)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1xT4-16GB,-1", ["line 2", "usd_per_hour", "above 0"]),
        ("1xT4-16GB,1e308", ["line 2", "usd_per_hour", "0.0001 to 1,000,000"]),
        ("1xT4-16GB,1e-10", ["line 2", "usd_per_hour", "0.0001 to 1,000,000"]),
        ("1xT4-16GB,nan", ["line 2", "usd_per_hour", "finite number"]),
        ("1xT4-16GB,", ["line 2", "usd_per_hour", "missing", "give the price"]),
        ("1xT4-16GB,1\n1xT4-16GB,2", ["line 3", "gpu_profile_id", "already in line 2"]),
        ("1xT5-16GB,1", ["line 2", "gpu_profile_id", "unknown GPU profile", "<n>x<gpu_id>"]),
        ("0xT4-16GB,1", ["line 2", "unknown GPU profile"]),
        ("1x../secret,1", ["line 2", "unknown GPU profile"]),
        ("1xT4-16GB,1,2", ["line 2", "one comma each"]),
        # Five cells are of a probe.
        ("1xT4-16GB,0,1,1,", ["line 2", "users"]),
        ("1xT4-16GB,99999999999999999999,1,1,", ["line 2", "users", "1 to 10,000"]),
        # These users are simulated: of a million, 20 GiB of requests.
        ("1xT4-16GB,10001,1,1,", ["line 2", "users", "1 to 10,000"]),
        ("1xT4-16GB,1,1e308,1,", ["line 2", "nttft_ms", "1,000,000,000"]),
        ("1xT4-16GB,1,inf,1,", ["line 2", "nttft_ms", "finite number"]),
        ("1xT4-16GB,1,1,0,", ["line 2", "itl_ms", "above 0"]),
        ("1xT4-16GB,1,,,", ["line 2", "ttft_ms, nttft_ms, itl_ms, tpot_ms, e2e_ms", "no latency"]),
        ("1xT4-16GB,1,5,1,400", ["line 2", "e2e_ms", "not above TTFT"]),
        ("1xT4-16GB,1,,10,400", ["line 2", "e2e_ms", "ITL × (output tokens - 1)"]),
        ("1xT4-16GB,1.5,1,1,", ["line 2", "users", "valid integer"]),
        ("what,1,1,1,", ["line 2", "gpu_profile_id", "unknown GPU profile"]),
        ("1xT4-16GB,1,1,1,\n1xT4-16GB,1,2,2,", ["line 3", "already in line 2"]),
        ("1xT4-16GB,,1,1,", ["line 2", "users, request_rate_rps", "exactly one"]),
    ],
)
def test_a_wrong_price_or_probe_is_said_with_file_line_and_fix(source, tmp_path, row, words):
    is_probe = row.splitlines()[0].count(",") == 4
    columns = "users,nttft_ms,itl_ms,e2e_ms" if is_probe else "usd_per_hour"
    path = table(tmp_path, f"gpu_profile_id,{columns}\n{row}\n")
    with pytest.raises(InputError) as raised:
        if is_probe:
            read_probe(path, "new", PROBED, source.characterization.profiles, (100.0, 51.0))
        find_candidates(source.characterization.profiles, (), path)
    assert all(word in str(raised.value) for word in [str(path), *words]), raised.value


@pytest.mark.parametrize(
    ("columns", "values", "words"),
    [
        ("ttft_ms,tpot_ms,e2e_ms", "50,8,9000", "more than twice TTFT + TPOT"),
        ("ttft_ms,nttft_ms", "50,8", "TTFT is not nTTFT × input tokens"),
    ],
)
def test_latencies_that_contradict_each_other_are_refused(source, tmp_path, columns, values, words):
    path = table(tmp_path, f"gpu_profile_id,users,{columns}\n1xT4-16GB,16,{values}\n")
    with pytest.raises(InputError, match=f"line 2.*{re.escape(words)}"):
        read_probe(path, "new", PROBED, source.characterization.profiles, (100.0, 51.0))


@pytest.mark.parametrize(
    ("column", "value", "nttft_ms", "itl_ms"),
    [
        ("ttft_ms", "50", 0.5, None),
        ("nttft_ms", "0.5", 0.5, None),
        ("itl_ms", "20", None, 20),
        ("tpot_ms", "20", None, 20),
        ("e2e_ms", "1050", None, None),
        ("ttft_ms,e2e_ms", "50,1050", 0.5, 20),
        ("tpot_ms,e2e_ms", "20,1050", 0.5, 20),
        ("ttft_ms,input_tokens", "50,200", 0.25, None),
    ],
)
def test_a_probe_takes_any_latency(source, tmp_path, column, value, nttft_ms, itl_ms) -> None:
    path = table(tmp_path, f"gpu_profile_id,users,{column}\n1xT4-16GB,4,{value}\n")
    (row,) = read_probe(
        path, "new", PROBED, source.characterization.profiles, (100.0, 51.0)
    ).to_dict("records")
    for name, wanted in (("nttft_ms", nttft_ms), ("itl_ms", itl_ms)):
        assert math.isnan(row[name]) if wanted is None else row[name] == pytest.approx(wanted)


def test_a_probe_of_a_rate_has_the_requests_in_flight_as_users(source, tmp_path) -> None:
    columns = "gpu_profile_id,request_rate_rps,ttft_ms,itl_ms,e2e_ms"
    path = table(tmp_path, f"{columns}\n1xT4-16GB,4,500,20,\n1xT4-16GB,8,,,3000\n")
    read = read_probe(path, "new", PROBED, source.characterization.profiles, (100.0, 51.0))
    assert read["request_rate_rps"].tolist() == [4, 8]
    assert read["users"].tolist() == [6, 24]  # 4 × 1.5 s and 8 × 3 s


def test_loads_of_several_lengths_and_of_users_and_rates_are_one_probe(source, tmp_path) -> None:
    columns = "gpu_profile_id,users,request_rate_rps,input_tokens,ttft_ms,itl_ms"
    rows = "1xT4-16GB,4,,100,500,20\n1xT4-16GB,4,,200,900,20\n1xT4-16GB,,4,100,500,20\n"
    path = table(tmp_path, f"{columns}\n{rows}")
    read = read_probe(path, "new", PROBED, source.characterization.profiles, (100.0, 51.0))
    assert read["users"].tolist() == [4, 4, 6] and read["input_tokens"].tolist() == [100, 200, 100]
    assert read["request_rate_rps"].isna().tolist() == [True, True, False]


def test_a_rate_needs_one_latency_alone(source, tmp_path) -> None:
    columns = "gpu_profile_id,request_rate_rps,ttft_ms,tpot_ms"
    path = table(tmp_path, f"{columns}\n1xT4-16GB,4,500,\n1xT4-16GB,4.001,,20\n")
    read = read_probe(path, "new", PROBED, source.characterization.profiles, (100.0, 51.0))
    assert math.isnan(read["users"][0]) and read["users"][1] == 4  # of 50 gaps of 20 ms
    (note,) = uncounted_notes(read)
    assert note.startswith("1 of 2 loads of --probe: TTFT alone at a request rate does not say")
    assert uncounted_notes(read[1:]) == []


def test_a_rate_of_answers_of_one_token_needs_no_time_per_token(source, tmp_path) -> None:
    path = table(tmp_path, "gpu_profile_id,request_rate_rps,ttft_ms\n1xT4-16GB,4,500\n")
    read = read_probe(path, "new", PROBED, source.characterization.profiles, (100.0, 1.0))
    assert read["users"].tolist() == [2]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("1xT4-16GB,2,4,500,20", "exactly one of them"),
        ("1xT4-16GB,,0,500,20", "above 0"),
        ("1xT4-16GB,,4,500,20\n1xT4-16GB,,4,600,20", "at 4 requests/s is already in line 2"),
    ],
)
def test_a_wrong_probe_of_a_rate_is_said(source, tmp_path, rows, said) -> None:
    columns = "gpu_profile_id,users,request_rate_rps,ttft_ms,itl_ms"
    path = table(tmp_path, f"{columns}\n{rows}\n")
    with pytest.raises(InputError, match=said):
        read_probe(path, "new", PROBED, source.characterization.profiles, (100.0, 51.0))


def test_without_a_store_the_shipped_characterization_answers(source) -> None:
    facts = source.facts()
    assert (facts["origin"], facts["source"]) == ("shipped", "archive:llm-pilot")
    assert (facts["n_llms"], facts["n_gpu_profiles"], facts["n_points"]) == (10, 14, 528)
    assert facts["mean_input_tokens"] == pytest.approx(121, abs=1)
    assert (facts["longest_request_tokens"], facts["memory_utilization"]) == (946, 0.9)
    assert "2023" in facts["note"]


def test_the_pipelines_own_store_answers_for_the_llms_it_knows(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = source.characterization
    setting = {"source": "measured", "workload_id": "chat", "scenario_id": "users"}
    point = {"llm_id": "mine", "gpu_profile_id": "1xT4-16GB", "variant_id": "default", "level": 1}
    lengths = {"mean_input_tokens": 50.0, "mean_output_tokens": 20.0}
    rows = {
        **store_fact_rows({"mine": known.llms["llama-7b"]}, known.profiles),
        "workload": [{"workload_id": "chat", "max_input_tokens": 90, "max_output_tokens": 9}],
        "point": [setting | point | lengths],
        "feasibility": [setting | point | {"is_feasible": True, "memory_utilization": 0.8}],
    }
    build_store(tmp_path / "results" / "sextant.duckdb", rows, {})
    own = find_source(replace(ASKED, hf_config=None, llm_id="mine"))
    assert own.origin == "results/sextant.duckdb"
    assert (own.longest_request_tokens, own.memory_utilization) == (99, 0.8)
    assert (own.input_tokens, own.output_tokens) == (50.0, 20.0)
    assert find_source(replace(ASKED, hf_config=None, llm_id="llama-7b")).origin == "shipped"
    assert find_source(ASKED).origin == "shipped"
    assert find_source(replace(ASKED, sources=("archive:llm-pilot",))).origin == "shipped"
    # One LLM alone predicts no other: what ships counts beside it.
    of_store = find_source(replace(ASKED, sources=("measured",))).characterization
    assert of_store.source == "measured + " + todays_sources().source


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workload_id": "other"}, "'--workload-id'.*--database"),
        ({"scenario_id": "other"}, "'--scenario-id'.*--database"),
        ({"sources": ("archive:other",)}, r"no store here.*archive:inferencex"),
        ({"sources": ("archive:mlenergy",)}, r"does not say input_tokens.*archive:inferencex"),
    ],
)
def test_a_source_that_cannot_answer_is_an_error(tmp_path, monkeypatch, change, said) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        find_source(replace(ASKED, **change))
    both = replace(ASKED, sources=("archive:mlenergy", "archive:inferencex"))
    assert find_source(both).input_tokens == 922


def test_an_llm_that_fits_nowhere_is_an_error_that_names_the_largest_profile(source) -> None:
    asked = replace(ASKED, hf_config=None, llm_id="huge")
    huge = replace(source.characterization.llms["llama-13b"], n_parameters=10**12)
    with pytest.raises(InputError, match="no GPU profile can serve huge; 4xH100-80GB: the weights"):
        Case(asked, asked, source, huge, source.characterization.profiles).excluded  # noqa: B018


@pytest.mark.parametrize("engine", ["vllmm", "vLLM", "SGLang", "sglagn"])
def test_a_name_that_is_nearly_an_engines_is_refused(engine) -> None:
    asked = Question(SLO("asked", users=1, itl_ms=50.0, percentile=50), llm_id="a", engine=engine)
    with pytest.raises(InputError, match=f"unknown engine {engine!r}"):
        check_question(asked)
    check_question(replace(asked, engine="lmdeploy"))
