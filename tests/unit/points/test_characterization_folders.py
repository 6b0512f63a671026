"""A characterization as a folder of data: what it holds, and what is wrong with it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from command import sextant
from sextant.ask.source import known_sources, load_sources
from sextant.base.errors import InputError
from sextant.points.characterization import (
    characterization_summary,
    characterization_text,
    combined,
)
from sextant.points.export import write_points
from sextant.points.folder import SHIPPED, load_folder
from sextant.points.frame import COLUMNS, at_percentile, complete
from support import ROOT

YAML = """source: archive:mine
licence: CC-BY-4.0
attribution: Somebody, somewhere
statistic: mean
load: closed_loop
lengths: fixed
defaults:
  engine: sglang
  precision: fp8
"""
LLMS = "llm_id\tconfig\ntiny\tconfig.json\n"
PROFILES = """gpu_profile_id\tgpu_id\tn_gpus\tusd_per_hour
2xH100-80GB\tH100-80GB\t2\t
1xL4-24GB\tL4-24GB\t1\t0.8
"""
POINTS = """# measured at home
llm_id,gpu_profile_id,engine_version,precision,input_tokens,output_tokens,users,mean_ttft_ms,mean_tpot_ms,run_id
tiny,2xH100-80GB,0.5.1,,1000,200,4,50,8,a
tiny,2xH100-80GB,0.5.10,bf16,1000,200,4,60,9,b
tiny,1xL4-24GB,,,500,200,1,20,30,c
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = (ROOT / "resources" / "llms" / "demo-llama-16m.json").read_text()
    files = {"characterization.yaml": YAML, "points.csv": POINTS, "config.json": config}
    for name, text in (files | {"llms.tsv": LLMS, "gpu_profiles.tsv": PROFILES}).items():
        (tmp_path / name).write_text(text)
    return tmp_path


def change(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))


# What comes out


def test_points_have_all_columns_with_defaults_and_what_follows_from_others(folder) -> None:
    known = load_folder(folder)
    points = known.points
    assert points.columns[: len(COLUMNS)].tolist() == COLUMNS
    assert points["engine"].tolist() == ["sglang"] * 3
    assert points["precision"].tolist() == ["fp8", "bf16", "fp8"]
    assert points["engine_version"].tolist()[:2] == ["0.5.1", "0.5.10"]
    assert points["engine_version"].isna().tolist() == [False, False, True]
    assert points["cuda_graphs"].isna().all()
    assert points["mean_nttft_ms"].tolist() == [0.05, 0.06, 0.04]
    assert points["mean_itl_ms"].tolist() == [8, 9, 30]
    assert points[["median_itl_ms", "p90_ttft_ms", "tensor_parallel"]].isna().all(axis=None)
    assert set(points["source"]) == {"archive:mine"}


def test_a_point_or_all_of_a_folder_may_be_without_cuda_graphs(folder) -> None:
    change(folder, "points.csv", "users,mean", "users,cuda_graphs,mean")
    change(folder, "points.csv", "200,4,50", "200,4,false,50")
    change(folder, "points.csv", "200,4,60", "200,4,True,60")
    change(folder, "points.csv", "200,1,20", "200,1,,20")
    assert load_folder(folder).points["cuda_graphs"].fillna(True).tolist() == [False, True, True]
    change(folder, "characterization.yaml", "  precision: fp8", "  cuda_graphs: false")
    points = load_folder(folder).points
    assert points["cuda_graphs"].tolist() == [False, True, False]
    write_points(folder / "points.csv", points)
    again = load_folder(folder).points  # sorted
    assert again.set_index("run_id")["cuda_graphs"].to_dict() == {"a": False, "b": True, "c": False}
    change(folder, "points.csv", "False", "sometimes")
    with pytest.raises(InputError, match="field 'cuda_graphs'"):
        load_folder(folder)


def test_points_that_no_memory_holds_are_left_out_and_named(folder) -> None:
    # A tiny LLM's cache of 24 GB holds less than a hundred million requests that decode.
    change(folder, "points.csv", ",500,200,1,20,30,c", ",500,200,100000000,20,30,c")
    known = load_folder(folder)
    assert known.points["run_id"].tolist() == ["a", "b"]
    (said,) = known.left_out
    assert said.startswith("archive:mine: 1 point of tiny on 1xL4-24GB is left out as wrong: more")


def test_each_row_gives_a_latency_in_its_own_columns(folder) -> None:
    (folder / "points.csv").write_text(
        "llm_id,gpu_profile_id,input_tokens,output_tokens,users,mean_ttft_ms,median_ttft_ms,"
        "mean_nttft_ms,mean_tpot_ms,mean_itl_ms,p99_itl_ms\n"
        "tiny,1xL4-24GB,500,200,1,20,,,30,,\n"
        "tiny,1xL4-24GB,500,200,2,22,20,,,31,90\n"
        "tiny,1xL4-24GB,500,200,3,,,0.05,32,,\n"
        "tiny,1xL4-24GB,500,200,4,21,,,,,\n"
    )
    points = at_percentile(load_folder(folder).points, (50, 50))
    assert (points["nttft_ms"] * 500).tolist() == [20, 20, 25, 21]
    assert points["itl_ms"].tolist()[:3] == [30, 31, 32]
    assert points["itl_ms"].isna().tolist() == [False, False, False, True]


def test_itl_follows_from_e2e_and_ttft(folder) -> None:
    (folder / "points.csv").write_text(
        "llm_id,gpu_profile_id,input_tokens,output_tokens,users,mean_ttft_ms,mean_e2e_ms,"
        "mean_itl_ms\ntiny,1xL4-24GB,500,201,1,20,4020,\n"
        "tiny,1xL4-24GB,500,201,2,20,4020,25\ntiny,1xL4-24GB,500,1,3,20,20,\n"
    )
    points = load_folder(folder).points
    assert points["mean_itl_ms"].dropna().tolist() == [20, 25]
    assert points["derived"].str.split().tolist() == [["nttft", "itl"], ["nttft"], ["nttft"]]


def test_prices_may_be_unknown_and_measured_pairs_are_feasible(folder) -> None:
    known = load_folder(folder)
    assert known.profiles["1xL4-24GB"].usd_per_hour == 0.8
    assert pd.isna(known.profiles["2xH100-80GB"].usd_per_hour)
    assert known.feasibility["is_feasible"].tolist() == [True, True]
    (folder / "feasibility.csv").write_text(
        "llm_id,gpu_profile_id,status,reason\ntiny,1xL4-24GB,too_small,by a hair\n"
        "tiny,2xH100-80GB,measured,\n"
    )
    change(folder, "points.csv", "tiny,1xL4-24GB,,,500,200,1,20,30,c\n", "")
    tried = load_folder(folder).feasibility
    assert tried["is_feasible"].tolist() == [False, True]
    assert tried["verdict"].tolist() == ["memory_too_small", "feasible"]
    assert tried["reason"].tolist() == ["by a hair", "fits (archive:mine)"]


def test_a_folder_may_bring_a_gpu_of_its_own(folder) -> None:
    facts = (ROOT / "resources" / "gpus" / "L4-24GB.yaml").read_text()
    (folder / "gpus").mkdir()
    (folder / "gpus" / "Own-24GB.yaml").write_text(facts.replace("L4-24GB", "Own-24GB"))
    change(folder, "gpu_profiles.tsv", "\tL4-24GB", "\tOwn-24GB")
    assert load_folder(folder).profiles["1xL4-24GB"].gpu.gpu_id == "Own-24GB"


def test_an_llm_has_its_own_dtype_or_that_of_the_folder(folder) -> None:
    change(folder, "characterization.yaml", "lengths: fixed", "lengths: fixed\ndtype: float32")
    assert load_folder(folder).llms["tiny"].dtype == "float32"
    (folder / "llms.tsv").write_text("llm_id\tconfig\tdtype\ntiny\tconfig.json\tfloat16\n")
    assert load_folder(folder).llms["tiny"].dtype == "float16"


# What is wrong


POINT = "points.csv"
ABOUT = "characterization.yaml"


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        (POINT, "run_id", "speed", "points.csv, line 2, field 'speed': unknown column"),
        (POINT, "4,60,9", "4,-60,9", "line 4, field 'mean_ttft_ms': -60.0 should be"),
        (POINT, "4,60,9", "4,fast,9", "field 'mean_ttft_ms': 'fast' should be a valid"),
        (POINT, "c\n", "c,1\n", "line 5: 11 cells under 10 columns. Fix: separate"),
        (POINT, "4,60,9", "4.5,60,9", "line 4, field 'users': '4.5' should be a valid"),
        (POINT, "bf16", "fp7", "line 4, field 'precision': 'fp7' should be 'fp32', "),
        (POINT, ",4,60", ",,60", "line 4, field 'users, request_rate_rps': neither users"),
        (POINT, "tiny,1x", "../tiny,1x", "'llm_id': '../tiny' is not in llms.tsv. Fix: add a row"),
        (POINT, ",1xL4", ",../1xL4", "field 'gpu_profile_id': '../1xL4-24GB' is not in"),
        (POINT, "mean_ttft", "median_ttft", "line 3, .*: median without mean, but .* is mean. Fix"),
        (ABOUT, "c: mean", "c: median", "line 3, field 'mean_ttft_ms': mean without median, but"),
        (ABOUT, "load:", "licence: MIT\nload:", "line 5: the key 'licence' is already in line 2;"),
        (ABOUT, "licence:", "license:", "field 'license': unknown field"),
        (ABOUT, "s:\n", "s:\n  tensor_parallel: 2\n", "line 5, .*: 2 is more than the 1 GPUs of"),
        (ABOUT, "fixed", "short", "field 'lengths': 'short' should be"),
        ("llms.tsv", "config.json", "no.json", "llms.tsv, line 2, field 'config': tiny has no"),
        ("llms.tsv", "tiny\t", "tiny\tconfig.json\ntiny\t", "line 3, field 'llm_id': .* in line 2"),
        ("gpu_profiles.tsv", "\tL4", "\tL5", "Fix: write its facts as gpus/L5-24GB.yaml .* H100"),
        (POINT, "4,60,9", "4,nan,9", "line 4, field 'mean_ttft_ms': nan should be a finite"),
        (POINT, "4,60,9", "4,1e300,9", "line 4, field 'mean_ttft_ms': 1e.300 should be less"),
        (POINT, "200,4,60", f"200,{10**30},60", "line 4, field 'users': 1000.* should be less"),
        (POINT, "200,4,60", f"200,{'9' * 5000},60", "line 4, field 'users': '999"),
        (POINT, "1000,200,4,60", "-1,200,4,60", "'input_tokens': -1.0 should be greater"),
    ],
)
def test_bad_input_is_one_error_with_file_row_field_and_fix(folder, name, old, new, told) -> None:
    change(folder, name, old, new)
    with pytest.raises(InputError, match=told) as error:
        load_folder(folder)
    said = str(error.value)
    assert (name in said or f"{POINT}, line" in said) and ". Fix: " in said and len(said) < 6000


def test_what_never_ends_or_is_too_much_is_refused(folder, monkeypatch) -> None:
    monkeypatch.setattr("sextant.points.folder_sheets.MOST_POINTS", 2)
    with pytest.raises(InputError, match=r"points.csv: more than 2 points. Fix: keep one row"):
        load_folder(folder)
    (folder / "llms.tsv").unlink()
    os.mkfifo(folder / "llms.tsv")
    with pytest.raises(InputError, match=r"llms.tsv: cannot be read .it is a pipe"):
        load_folder(folder)


numbers = st.none() | st.floats(1e-3, 1e6, allow_subnormal=False)
names = ("median_ttft_ms", "median_itl_ms", "median_tpot_ms", "throughput_tok_s")
measured = st.fixed_dictionaries(
    dict.fromkeys(names, numbers)
    | {"users": st.integers(1, 10**6), "n_ok": st.none() | st.integers(0, 10**9)}
    | {"engine_version": st.none() | st.sampled_from(["0.19.0", "a,b", '"quoted"', "#1"])}
)


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(measured, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_a_folder_written_and_read_is_the_same_in_any_order(folder, rows, random) -> None:
    change_all = (folder / "characterization.yaml").read_text().replace("mean", "median")
    (folder / "characterization.yaml").write_text(change_all)
    named = [{"llm_id": "tiny", "gpu_profile_id": "1xL4-24GB", **row} for row in rows]
    read = []
    for _ in range(2):
        write_points(folder / "points.csv", complete(pd.DataFrame(named)).drop(columns="derived"))
        read.append(load_folder(folder).points[COLUMNS])
        random.shuffle(named)
    again = complete(pd.DataFrame(named), {"engine": "sglang", "precision": "fp8"})[COLUMNS]
    by = [*rows[0]]
    for frame in (*read, again):
        ordered = frame.sort_values(by, ignore_index=True)
        pd.testing.assert_frame_equal(ordered, read[0].sort_values(by, ignore_index=True))


def test_a_higher_percentile_is_never_below_a_lower_one(folder) -> None:
    change(folder, "points.csv", "mean_tpot_ms", "mean_tpot_ms,p90_ttft_ms,p95_ttft_ms,p99_ttft_ms")
    change(folder, "points.csv", "50,8,a", "50,8,90,,80,a")
    change(folder, "points.csv", "60,9,b", "60,9,90,95,99,b")
    change(folder, "points.csv", "20,30,c", "20,30,,,,c")
    told = r"points.csv, line 3, field 'p99_ttft_ms': 80 is below the 90 of a lower .*"
    with pytest.raises(InputError, match=told):
        load_folder(folder)
    change(folder, "points.csv", "90,,80", "90,,90")
    assert load_folder(folder).points["p99_ttft_ms"].tolist()[:2] == [90, 99]


def test_an_own_folder_has_a_name_of_its_own(folder) -> None:
    change(folder, "characterization.yaml", "archive:mine", "archive:inferencex")
    told = r"characterization.yaml, field 'source': archive:inferencex is a source that ships.*Fix"
    for load in (lambda: load_sources((str(folder),)), lambda: known_sources([folder])):
        with pytest.raises(InputError, match=told):
            load()
    # A copy of what ships is not somebody else's work.
    (attribution,) = (each.attribution for each in load_folder(SHIPPED / "inferencex").descriptions)
    change(folder, "characterization.yaml", "Somebody, somewhere", json.dumps(attribution))
    assert load_sources((str(folder),))[0].source == "archive:inferencex"


def test_several_sources_are_one_frame_with_their_names(folder) -> None:
    known, origin = load_sources((str(folder), "archive:llm-pilot"))
    assert known.source == "archive:mine + archive:llm-pilot"
    assert origin == f"{folder} + shipped"
    assert known.points["source"].value_counts().to_list() == [528, 3]
    assert len(known.llms) == 11 and len(known.profiles) == 15
    assert [each.licence for each in known.descriptions] == ["CC-BY-4.0", "CDLA-Permissive-2.0"]
    # The first price that is known.
    assert known.profiles["2xH100-80GB"].usd_per_hour == 24.58


def test_sources_that_contradict_each_other_are_an_error(folder) -> None:
    mine = load_folder(folder)
    with pytest.raises(InputError, match="two sources are called archive:mine"):
        combined([mine, mine])
    other = replace(mine, source="other", llms={"tiny": replace(mine.llms["tiny"], n_layers=99)})
    with pytest.raises(InputError, match="archive:mine and other have other facts of 'tiny'"):
        combined([mine, other])
    assert len(combined([mine, replace(mine, source="other")]).points) == 6


def test_the_list_says_what_each_holds(folder) -> None:
    row = characterization_summary(load_folder(folder), "here")
    assert row["engines"] == ["sglang"] and row["users"] == [1.0, 4.0]
    assert row["measured_on"] is None and row["licences"] == ["CC-BY-4.0"]
    text = characterization_text(row)
    assert "archive:mine (here)" in text
    assert "3 points: 1 LLMs on H100-80GB, L4-24GB" in text
    assert "1 to 4 users; 500 to 1,000 input tokens; 200 output tokens" in text


def test_a_folder_can_be_judged_without_a_store(folder, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("demo-llama-16m", "demo-qwen2-26m", "demo-opt-6m", "demo-neox-34m")
    configs = ROOT / "resources" / "llms"
    rows = [f"{name}\t{configs / name}.json" for name in names]
    (folder / "llms.tsv").write_text("\n".join(["llm_id\tconfig", *rows, ""]))
    comment, header, *points = POINTS.splitlines()
    made = [row.replace("tiny", name) for name in names for row in points]
    (folder / "points.csv").write_text("\n".join([comment, header, *made, ""]))
    told = sextant("evaluate", "--source", folder, "--predictor", "roofline", "--format", "json")
    (row,) = json.loads(told[told.index("{") :])["predictors"]
    assert row["n_tpot"] == 12 and row["mape_ttft"] > 0


def test_what_ships_and_a_folder_are_listed(folder, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [characterization_summary(*each) for each in known_sources([folder])]
    shipped = ("inferencex", "inferencex-other-engines", "llm-pilot", "mlenergy", "nvidia-perf")
    assert [row["source"] for row in rows] == [f"archive:{name}" for name in (*shipped, "mine")]
    assert [row["n_points"] for row in rows] == [1144, 570, 528, 378, 661, 3]
    assert json.loads(sextant("characterizations", folder, "--format", "json")) == rows
    assert f"archive:mine ({folder})" in sextant("characterizations", folder)


def test_an_llm_that_cannot_be_sized_is_left_out_with_its_points_and_named(folder) -> None:
    change(folder, "llms.tsv", "tiny\t", "new\tnew.json\ntiny\t")
    (folder / "new.json").write_text('{"model_type": "rwkv"}')
    change(folder, "points.csv", "tiny,1xL4", "new,1xL4")
    known = load_folder(folder)
    assert list(known.llms) == ["tiny"] and len(known.points) == 2
    assert set(known.feasibility["llm_id"]) == {"tiny"}
    (said,) = known.left_out
    assert "new is left out with 1 points" in said and "RWKV has no attention" in said


TRIED = "llm_id,gpu_profile_id,status\ntiny,2xH100-80GB,measured\ntiny,1xL4-24GB,too_small\n"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("points.csv", None, "no points.csv. Fix: write the points there"),
        ("characterization.yaml", None, "no characterization.yaml .*sextant load"),
        ("config.json", '{"model_type": "rwkv"}', "RWKV has no attention"),
        ("config.json", "{", r"config\.json"),
        ("feasibility.csv", TRIED, "feasibility.csv, line 3, field .status.: .* is too_small, but"),
    ],
)
def test_a_file_that_lacks_or_contradicts_is_named(folder, name, text, told) -> None:
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    with pytest.raises(InputError, match=told):
        load_sources((str(folder),))


@pytest.mark.parametrize(
    ("source", "predictor", "told"),
    [
        (None, "roofline", "hold-out': the points are of 1 LLM: roofline needs 2 LLMs or more to"),
        ("archive:mlenergy", "nope", "predictor': unknown predictor 'nope'. Fix: use one of roofl"),
        ("archive:mlenergy", "paris", "paris needs reference measurements. Fix: judge it on SLOs"),
        ("archive:mlenergy", "static_policy", "static_policy predicts no latencies. Fix: judge it"),
        ("archive:mlenergy", "rf", "rf needs TTFT and ITL; 378 of 378 points lack one. Fix: judge"),
    ],
)
def test_what_cannot_be_judged_is_said(folder, monkeypatch, source, predictor, told) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=told):
        sextant("evaluate", "--source", source or folder, "--predictor", predictor)
