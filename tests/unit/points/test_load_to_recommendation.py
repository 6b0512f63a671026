"""A server that somebody else started: loaded, its points in a store, and a recommendation."""

import json
import shutil

import pandas as pd
import pytest

from command import sextant
from sextant.ask.source import todays_sources
from sextant.base.errors import InputError
from sextant.points.cell_files import sealed
from sextant.points.folder import load_folder, shipped_sources
from sextant.points.frame import COLUMNS, IDENTIFIERS, INTERVAL_COLUMNS
from sextant.points.measured import load_all
from stub_server import StubServer, answer_endpoint, answer_tokens
from support import ROOT

LENGTHS = ("--input-tokens", 16, "--output-tokens", 5)
SUBJECT = ("--llm", "llama-7b", "--gpu-profile", "1xA100-40GB", "--engine", "tgis")
SLO = ("--nttft-ms", 1000, "--itl-ms", 1000)


def load(url: str, out, *options: object, exit_code: int = 0) -> str:
    to = ("--base-url", url, "--model", "m", "--out", out, "--duration", 0.3, "--warmup", 0)
    return sextant("load", *to, *options, exit_code=exit_code)


@pytest.fixture(scope="module")
def loads(tmp_path_factory):
    """Two loads: a cheap GPU profile, and one of twice the price."""
    folder = tmp_path_factory.mktemp("loads")
    with StubServer(answer_endpoint("m")) as server:
        price = ("--usd-per-hour", 2)
        load(server.url, folder / "a100", *LENGTHS, "--users", "1,2,4", *SUBJECT, *price)
        dear = ("--llm", "llama-7b", "--gpu-profile", "1xH100-80GB", "--usd-per-hour", 4)
        load(server.url, folder / "h100", *LENGTHS, "--users", "1,2", *dear)
    return folder


def test_a_loaded_server_is_recommended(loads):
    asked = ("recommend", "--database", loads, "--llm", "llama-7b", "--users", 10, *SLO)
    answer = json.loads(sextant(*asked, "--format", "json"))
    assert (answer["gpu_profile_id"], answer["replicas"]) == ("1xA100-40GB", 3)
    assert (answer["users_per_replica"], answer["usd_per_hour"]) == (4, 6.0)
    others = {row["gpu_profile_id"]: row["status"] for row in answer["alternatives"]}
    assert set(others) == {"1xA100-40GB", "1xH100-80GB"}


def test_the_risk_of_a_measured_answer_is_that_of_its_intervals(loads):
    asked = ("recommend", "--database", loads, "--llm", "llama-7b", "--users", 10)
    answer = json.loads(sextant(*asked, *SLO, "--risk", 0.1, "--format", "json"))
    assert (answer["basis"], answer["risk"], answer["replicas"]) == ("measured", 0.1, 3)
    assert answer["probability_met"] > 0.9
    (_, itl) = answer["headroom"]["limits"]
    assert itl["lo_ms"] <= itl["latency_ms"] <= itl["hi_ms"]
    text = sextant(*asked, *SLO, "--risk", 0.1)
    assert "meets both limits with probability > 0.99 (measured)" in text
    assert "If one replica is lost, the SLO is not kept: the 2 left carry 8 users" in text
    none = ("--nttft-ms", 1000, "--itl-ms", itl["lo_ms"] / 100, "--risk", 0.1)
    said = sextant(*asked, *none, exit_code=3)
    assert "no GPU profile meets both limits with probability 0.9 or more" in said


def test_loads_are_shared_as_a_folder_that_answers_alike(tmp_path, loads):
    llms = ROOT / "config" / "llm-pilot" / "llms.tsv"
    said = ("--llms", llms, "--licence", "CC0-1.0", "--attribution", "nobody")
    assert "5 points" in sextant(
        "export-characterization", "--database", loads, *said, "--out", tmp_path
    )
    (known,), shared = load_all(loads), load_folder(tmp_path)
    columns = [*COLUMNS, *(name for name in INTERVAL_COLUMNS if name in shared.points)]
    measured = known.points[columns].sort_values([*IDENTIFIERS, "users"], ignore_index=True)
    pd.testing.assert_frame_equal(shared.points[columns].astype(measured.dtypes), measured)
    assert shared.points[["n_ok", "median_itl_lo_ms"]].notna().all(axis=None)
    asked = ("recommend", "--llm", "llama-7b", "--users", 10, *SLO, "--risk", 0.1)
    first, second = (
        json.loads(sextant(*asked, *of, "--format", "json"))
        for of in (("--database", loads), ("--source", tmp_path))
    )
    for name in ("gpu_profile_id", "replicas", "probability_met", "alternatives"):
        assert first[name] == second[name]


SHIPS = ("--source", "archive:inferencex")


@pytest.mark.parametrize(("of", "extra"), [("--database", ()), ("--source", SHIPS)])
def test_what_was_loaded_counts_beside_what_ships(loads, of, extra):
    asked = ("recommend", of, loads, *extra, "--llm", "llama-7b", "--users", 8)
    found = json.loads(sextant(*asked, *SLO, *LENGTHS, "--format", "json"))
    known = found["characterization"]
    ships = load_folder(shipped_sources()[SHIPS[1]]) if extra else todays_sources()
    assert known["source"] == f"measured + {ships.source}"
    assert known["n_points"] == 5 + len(ships.points)
    assert found["basis"] == "roofline"
    assert (extra == ()) == ("one LLM alone predicts no other" in (known["note"] or ""))


def test_a_prediction_without_lengths_is_for_those_of_the_llms_own_points(loads):
    asked = ("recommend", "--source", loads, *SHIPS, "--llm", "llama-7b", "--users", 4, *SLO)
    serving = json.loads(sextant(*asked, "--format", "json"))["serving"]
    assert (serving["input_tokens"], serving["output_tokens"]) == (16, 5)


def test_a_rate_is_simulated_where_what_was_loaded_has_a_law_of_a_step(loads, tmp_path):
    limits = ("--ttft-ms", "p95:1000", "--itl-ms", 1000, "--format", "json")
    rate = ("--llm", "llama-7b", "--request-rate", 30, *limits)
    steady = json.loads(sextant("recommend", "--database", loads, *rate))
    assert steady["basis"] == "measured"  # TGIS has no CUDA graphs
    assert "The rate is taken as a steady load, as measured" in steady["text"]
    of_vllm = ("--llm", "llama-7b", "--gpu-profile", "1xH100-80GB", "--engine", "vllm")
    with StubServer(answer_endpoint("m")) as server:
        given = (*LENGTHS, "--users", "1,2", *of_vllm, "--usd-per-hour", 4)
        load(server.url, tmp_path / "own", *given)
    asked = ("--source", tmp_path / "own", *rate, "--gpu-profiles", "1xH100-80GB")
    quick = json.loads(sextant("recommend", *asked))
    assert quick["arrivals"] == "poisson" and "steady load" not in quick["text"]


def test_a_measured_server_is_offered_whatever_memory_facts_say(tmp_path):
    # 13 billion parameters in 16 bits do not fit into 16 GiB: who serves them has quantized them.
    subject = ("--llm", "llama-13b", "--gpu-profile", "1xT4-16GB", "--usd-per-hour", 1)
    with StubServer(answer_tokens(0.002, 0.002)) as server:
        load(server.url, tmp_path / "t4", *LENGTHS, "--users", "1,2", *subject)
    asked = ("recommend", "--database", tmp_path, "--llm", "llama-13b", "--users", 2, *SLO)
    assert json.loads(sextant(*asked, "--format", "json"))["gpu_profile_id"] == "1xT4-16GB"


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        (("--gpu-profile", "1xA100-40GB"), "'definition.llm'.*--llm or --hf-config"),
        (("--llm", "llama-7b"), "'definition.gpu_profile'.*--gpu-profile"),
    ],
)
def test_what_a_load_does_not_say_of_its_server_is_asked_for(tmp_path, subject, said):
    with StubServer(answer_tokens(0.002, 0.002)) as server:
        load(server.url, tmp_path / "one", *LENGTHS, "--users", 1, *subject)
    with pytest.raises(InputError, match=rf"one.run\.json, field {said}"):
        sextant("recommend", "--database", tmp_path, "--llm", "m", "--users", 1, *SLO)


def test_two_loads_of_the_same_and_a_folder_of_none_are_refused(tmp_path, loads):
    shutil.copytree(loads / "a100", tmp_path / "one")
    shutil.copytree(loads / "a100", tmp_path / "two")
    asked = ("--llm", "llama-7b", "--users", 1, *SLO)
    with pytest.raises(InputError, match=r"two: the same was measured in .*one"):
        sextant("recommend", "--database", tmp_path, *asked)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: there is no measured cell.* or --source FOLDER"):
        sextant("recommend", "--database", tmp_path / "empty", *asked)


def test_a_damaged_load_is_named_and_stays_where_it_is(tmp_path, loads):
    cell = tmp_path / "one"
    shutil.copytree(loads / "a100", cell)
    run = (cell / "run.json").read_text()
    (cell / "run.json").write_text(run.replace('"usd_per_hour": 2', '"usd_per_hour": 1'))
    names = {path.name for path in cell.iterdir()}
    asked = ("recommend", "--database", tmp_path, "--llm", "llama-7b", "--users", 1, *SLO)
    with pytest.raises(InputError, match=r"one: the cell is damaged: run\.json.*Fix: load again"):
        sextant(*asked)
    assert {path.name for path in cell.iterdir()} == names
    (cell / "run.json").write_text(run)
    (cell / "damaged-1").mkdir()
    (cell / "damaged-1" / "run.json").write_text("set aside by a pipeline")
    said = sextant(*asked)
    assert said.startswith("llama-7b: 1 replica")
    assert "1 LLM × 1 GPU profile, 3 points" in said


def test_loads_without_an_answer_say_why_there_is_none(tmp_path):
    def refuse(_, writer):
        writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
        return writer.drain()

    asked = ("recommend", "--database", tmp_path, "--llm", "llama-7b", "--users", 1, *SLO)
    with StubServer(refuse) as server:
        load(server.url, tmp_path / "one", *LENGTHS, "--users", 1, *SUBJECT, exit_code=1)
    with pytest.raises(InputError, match="no point has a request that succeeded"):
        sextant(*asked)
    with StubServer(answer_tokens()) as server:
        given = (*LENGTHS, "--request-rate", 20, *SUBJECT, "--usd-per-hour", 2)
        load(server.url, tmp_path / "one", *given)
    with pytest.raises(InputError, match=r"'scenario_id': some points have no users.*--users"):
        sextant(*asked)


@pytest.mark.parametrize(
    ("name", "fact", "field"),
    [
        ("llm", {"llm_type": 3}, "llm.llm_type"),
        ("llm", {"n_layers": 0}, "llm.n_layers"),
        ("llm", {"head_dim": -1}, "llm.head_dim"),
        ("llm", {"dtype": "float17"}, "llm.dtype"),
        ("gpu_profile", 3, "gpu_profile"),
        ("gpu_profile", {"n_gpus": 0}, "gpu_profile.n_gpus"),
        ("gpu_profile", {"usd_per_hour": -1}, "gpu_profile.usd_per_hour"),
    ],
)
def test_facts_that_cannot_be_are_named(tmp_path, loads, name, fact, field):
    run = json.loads((loads / "a100" / "run.json").read_text())
    shutil.copytree(loads / "a100", tmp_path / "one")
    known = run["definition"][name]
    run["definition"][name] = known | fact if isinstance(fact, dict) else fact
    (tmp_path / "one" / "run.json").write_text(json.dumps(sealed(run)))
    with pytest.raises(InputError, match=rf"run\.json, field 'definition\.{field}'"):
        sextant("recommend", "--database", tmp_path, "--llm", "llama-7b", "--users", 1, *SLO)
