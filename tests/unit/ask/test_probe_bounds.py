"""What no server can have is one error; what servers were measured to have is none."""

from dataclasses import replace

import pandas as pd
import pytest

from sextant.ask.probe import read_probe
from sextant.ask.probe_bounds import PossibleLatencies
from sextant.base.errors import InputError
from sextant.base.sheets import Row
from sextant.facts.gpu import profile_of_id
from sextant.facts.llm import load_llm, served
from sextant.points.folder import load_folder, shipped_sources
from sextant.points.frame import LATENCIES, STATISTICS
from support import ROOT

LLAMA = load_llm(ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json")
H100 = {"1xH100-80GB": profile_of_id("1xH100-80GB")}
SOURCES = shipped_sources()


@pytest.mark.parametrize(
    ("row", "field", "fix"),
    [
        ("0.0726,,,", "ttft_ms", "72.6, if it is in s now"),
        ("0.000001,,,", "ttft_ms", "what was measured, in milliseconds"),
        ("7200001,,,", "ttft_ms", "7200, if it is in µs now"),
        (",0.016,,", "tpot_ms", "16, if it is in s now"),
        (",16000000,,", "tpot_ms", "16000, if it is in µs now"),
        (",,0.001,", "e2e_ms", "what was measured, in milliseconds"),
        (",,1.5,", "e2e_ms", "1500, if it is in s now"),
        (",,,0.00001", "nttft_ms", "0.01, if it is in s now"),
        ("1000,,1001,", "e2e_ms", "output_tokens"),
    ],
)
@pytest.mark.parametrize("load", ["users", "request_rate_rps"])
def test_a_latency_that_no_server_has_is_one_error(tmp_path, row, field, fix, load) -> None:
    path = tmp_path / "probe.csv"
    columns = f"gpu_profile_id,{load},ttft_ms,tpot_ms,e2e_ms,nttft_ms"
    path.write_text(f"{columns}\n1xH100-80GB,1,400,40,6000,\n1xH100-80GB,2,{row}\n")
    with pytest.raises(InputError) as raised:
        read_probe(path, "new", LLAMA, H100, (500.0, 66.0))
    said = str(raised.value)
    assert all(word in said for word in (str(path), "line 3", f"'{field}'", fix)), said


@pytest.mark.parametrize("name", ["itl_ms", "tpot_ms"])
def test_a_time_between_tokens_of_one_token_is_one_error(tmp_path, name) -> None:
    path = tmp_path / "probe.csv"
    path.write_text(f"gpu_profile_id,users,ttft_ms,{name}\n1xH100-80GB,64,500,10\n")
    with pytest.raises(InputError, match=rf"line 2, field '{name}'.*one token.*output_tokens"):
        read_probe(path, "new", LLAMA, H100, (500.0, 1.0))


def test_an_llm_that_does_not_fit_on_the_measured_gpus_is_one_error(tmp_path) -> None:
    path = tmp_path / "probe.csv"
    path.write_text("gpu_profile_id,users,ttft_ms,tpot_ms\n1xH100-80GB,1,400,40\n")
    large = load_llm(ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-70B-Instruct.json")
    with pytest.raises(InputError, match=r"line 2, field 'gpu_profile_id'.*weights take.*--dtype"):
        read_probe(path, "new", large, H100, (500.0, 66.0))
    in_4_bits = served(large, "nvfp4", None)
    assert len(read_probe(path, "new", in_4_bits, H100, (500.0, 66.0))) == 1


@pytest.mark.parametrize(
    ("columns", "lengths"),
    [("input_tokens,output_tokens", "131000,200"), ("input_tokens", "131071")],
)
def test_requests_beyond_the_context_are_one_error(tmp_path, columns, lengths) -> None:
    path = tmp_path / "probe.csv"
    path.write_text(f"gpu_profile_id,users,tpot_ms,{columns}\n1xH100-80GB,1,40,{lengths}\n")
    with pytest.raises(InputError, match=r"line 2, field 'input_tokens.*context has 131,?072"):
        read_probe(path, "new", LLAMA, H100, (500.0, 66.0))
    path.write_text("gpu_profile_id,users,tpot_ms,input_tokens\n1xH100-80GB,1,40,131006\n")
    assert len(read_probe(path, "new", LLAMA, H100, (500.0, 66.0))) == 1


def test_a_missing_file_names_the_option(tmp_path) -> None:
    with pytest.raises(InputError, match=r"none\.csv, field '--probe': .*Fix: correct its path"):
        read_probe(tmp_path / "none.csv", "new", LLAMA, H100, (500.0, 66.0))


def test_gaps_between_tokens_that_come_together_are_asked_for_as_tpot(tmp_path) -> None:
    path = tmp_path / "probe.csv"
    path.write_text("gpu_profile_id,users,itl_ms\n1xH100-80GB,1,0.036\n")
    with pytest.raises(InputError, match=r"line 2, field 'itl_ms'.*or give tpot_ms alone"):
        read_probe(path, "new", LLAMA, H100, (500.0, 66.0))


def test_a_large_llm_takes_longer_and_more_gpus_less() -> None:
    large = replace(LLAMA, n_flop_parameters=100 * LLAMA.n_flop_parameters)
    (gpu_profile,) = H100.values()
    lengths = (500.0, 66.0)
    least = PossibleLatencies.of(LLAMA, gpu_profile, *lengths).least_ms
    of_large = PossibleLatencies.of(large, gpu_profile, *lengths).least_ms
    of_eight = PossibleLatencies.of(large, replace(gpu_profile, n_gpus=8), *lengths).least_ms
    for name in LATENCIES:
        assert least[name] < of_eight[name] < of_large[name]


@pytest.mark.parametrize("name", SOURCES)
def test_no_point_that_ships_is_refused(name) -> None:
    characterization = load_folder(SOURCES[name])
    points = characterization.points
    lengths = points[["input_tokens", "output_tokens"]].astype(float).fillna(1.0)
    columns = [c for c in (f"{s}_{it}" for s in STATISTICS for it in LATENCIES) if c in points]
    assert columns and len(points)
    for index, point in points.iterrows():
        llm = characterization.llms[point["llm_id"]]
        gpu_profile = characterization.profiles[point["gpu_profile_id"]]
        possible = PossibleLatencies.of(llm, gpu_profile, *lengths.loc[index])
        for column in columns:
            if pd.notna(point[column]) and point[column] > 0:
                name_of_latency = column.partition("_")[2]
                possible.check(Row({name_of_latency: point[column]}, int(index)))
