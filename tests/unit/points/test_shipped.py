"""The characterization that ships: what it holds, and that a store gives it back."""

from dataclasses import replace

import pandas as pd
import pytest

from sextant.base.errors import InputError
from sextant.points.export import export_folder, write_table
from sextant.points.folder import SHIPPED, feasibility_table, load_folder
from sextant.points.frame import complete
from sextant.points.measured import load_characterization
from sextant.points.store import build_store, store_fact_rows
from support import ROOT

POINTS = SHIPPED / "llm-pilot" / "points.csv"


@pytest.fixture(scope="module")
def known():
    return load_folder(SHIPPED / "llm-pilot")


def test_a_store_of_these_points_gives_the_same_folder(known, tmp_path) -> None:
    names = {"input_tokens": "mean_input_tokens", "output_tokens": "mean_output_tokens"}
    points = known.points.rename(columns=names).assign(level=known.points["users"], engine=None)
    tables = {
        **store_fact_rows(known.llms, known.profiles),
        "point": _records(points),
        "feasibility": _records(known.feasibility.assign(variant_id="default")),
    }
    database, out = tmp_path / "sextant.duckdb", tmp_path / "out"
    build_store(database, tables, {})
    sheet = ROOT / "config" / "llm-pilot" / "llms.tsv"
    said = {"llms": sheet, "licence": "CC0-1.0", "attribution": "nobody"}
    assert export_folder(load_characterization(database), out, **said) == 528
    for name in ("points.csv", "gpu_profiles.tsv", "feasibility.csv"):
        assert (out / name).read_bytes() == (POINTS.parent / name).read_bytes()
    again = load_folder(out)
    assert again.llms == known.llms and again.profiles == known.profiles
    assert (again.source, again.workload_id) == (known.source, known.workload_id)
    description = again.descriptions[0]
    assert (description.statistic, description.load) == ("median", "closed_loop")


def test_verdicts_come_back_from_an_exported_folder(known, tmp_path) -> None:
    names = ["1xT4-16GB", "2xT4-16GB", "4xT4-16GB", "1xA100-40GB", "1xH100-80GB"]
    verdicts = ["weights_too_large", "heads_cannot_be_split", "memory_too_small", "omitted"]
    llm_id = "llama-7b"
    points = known.points[known.points["llm_id"] == llm_id]
    points = points[points["gpu_profile_id"] == "1xH100-80GB"]
    tried = known.feasibility.iloc[:5].assign(llm_id=llm_id, gpu_profile_id=names)
    tried = tried.assign(verdict=[*verdicts, "feasible"], reason=[*"abcd", "fits"])
    said = {"llms": ROOT / "config" / "llm-pilot" / "llms.tsv", "licence": "CC0-1.0"}
    export_folder(
        replace(known, points=points, feasibility=tried), tmp_path, **said, attribution="x"
    )
    again = load_folder(tmp_path).feasibility.set_index("gpu_profile_id")
    assert again.loc[names, "verdict"].tolist() == [*verdicts, "feasible"]
    assert again.loc[names, "reason"].tolist() == [*"abcd", "fits"]
    sheet = tmp_path / "feasibility.csv"
    sheet.write_text(sheet.read_text().replace("omitted,b", "too_small,b"))
    with pytest.raises(InputError, match="too_small contradicts the verdict heads_cannot_be_split"):
        load_folder(tmp_path)


def _records(frame: pd.DataFrame) -> list[dict]:
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def test_any_id_comes_back_from_an_exported_folder(known, tmp_path, monkeypatch) -> None:
    llm, profile = known.llms["llama-7b"], known.profiles["1xT4-16GB"]
    names = ["..", "org/name", '日本"`touch owned`', "#1", "-rf"]
    other = replace(profile.gpu, gpu_id="Own-16GB")
    profiles = {'2x<b>A"': replace(profile, gpu_profile_id='2x<b>A"', gpu=other)}
    keys = {"gpu_profile_id": '2x<b>A"', "users": 4, "median_itl_ms": 9.0, "median_nttft_ms": 1.0}
    points = complete(pd.DataFrame([keys | {"llm_id": name} for name in names]))
    tried = feasibility_table(points.assign(status="measured").to_dict("records"), "mine")
    mine = replace(known, points=points, llms=dict.fromkeys(names, llm), profiles=profiles)
    sheet = tmp_path / "llms.tsv"
    config = ROOT / "resources" / "llms" / "llama-7b.json"
    table = pd.DataFrame({"llm_id": names, "config": [str(config)] * len(names)})
    write_table(sheet, table)
    said = {"llms": sheet, "licence": "CC0-1.0", "attribution": "<b>nobody</b>"}
    export_folder(replace(mine, feasibility=tried, descriptions=()), tmp_path / "out", **said)
    again = load_folder(tmp_path / "out")
    assert set(again.points["llm_id"]) == set(names) == set(again.llms)
    assert again.profiles == profiles and len(again.feasibility) == len(names)
    assert {path.name for path in tmp_path.iterdir()} == {"llms.tsv", "out"}
    # What breaks off leaves the earlier folder as it was, not new tables beside old points.
    earlier = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr("sextant.points.export.write_points", lambda *_: 1 / 0)
    more = {"feasibility": tried.iloc[:2], "descriptions": ()}
    with pytest.raises(ZeroDivisionError):
        export_folder(replace(mine, **more), tmp_path / "out", **said)
    assert earlier == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
