"""From requests to points and the database, against plain pandas and numpy."""

import json
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

import cells
from sextant.base.errors import InputError
from sextant.base.files import read_provenance
from sextant.points.run import (
    ClientReport,
    LevelConditions,
    Quantiles,
    ServerFacts,
    ServerReport,
)
from sextant.points.store import build_store, connect, open_store
from sextant.points.summarize import aggregate_points
from sextant.points.verdict import FEASIBLE

QUANTILES = {"median": 50, "p90": 90, "p95": 95, "p99": 99}
KEY = {"source": "measured", "workload_id": "chat", "scenario_id": "users", "variant_id": "default"}


def draw_requests(rng: np.random.Generator, level: int, n: int) -> list[dict]:
    """Draw requests of random length and pace; about a fifth fail, some half-way."""
    rows = []
    for number in range(n):
        n_output = int(rng.integers(1, 12))
        sent_s = float(rng.uniform(0, 50))
        offsets_ms = np.cumsum(rng.exponential(20.0, n_output)).astype(np.float32)
        status = "ok" if rng.random() > 0.2 else str(rng.choice(["timeout", "connection_error"]))
        if status == "connection_error":
            offsets_ms = offsets_ms[:0]
        row = {"level": level, "user": number % level, "scheduled_s": sent_s, "sent_s": sent_s}
        row |= {"status": status, "error": None if status == "ok" else "went wrong"}
        row |= {"requested_input_tokens": 1, "requested_output_tokens": n_output}
        row |= dict.fromkeys(("first_token_s", "last_token_s", "input_tokens", "output_tokens"))
        if len(offsets_ms):
            first_ms, *_, last_ms = *offsets_ms, offsets_ms[-1]
            row |= {
                "first_token_s": sent_s + first_ms / 1e3,
                "last_token_s": sent_s + last_ms / 1e3,
            }
            row |= {"input_tokens": int(rng.integers(1, 500)), "output_tokens": len(offsets_ms)}
        rows.append(row | {"token_offsets_ms": offsets_ms.tolist()})
    return rows


def write_cell(
    folder: Path, llm_id: str, requests: list[dict], levels=(1, 4), power=(), kind="closed_loop"
):
    """Write the files of a measured cell; without levels it does not fit."""
    client = ClientReport(Quantiles(0.1, 0.5, 2.0), Quantiles(0.1, 0.2, 0.3))
    shared = {"client": client}
    facts = {float(it): {"duration_s": 50.0 + min(it, 50.0)} | shared for it in levels}
    for level in facts:
        facts[level]["server_report"] = ServerReport(None if level == 1 else 20.5)
    tuned = {"batch_weight_tokens": 4000, "starts_s": (20.0, 30.0)}
    tuned["verdict"] = FEASIBLE if levels else cells.TOO_LARGE
    options = {"telemetry": power, "levels": facts, "kind": kind, "gpu_profile_id": "1xA"}
    return cells.write_cell(folder, requests, llm_id=llm_id, **options, **tuned, **KEY)


def aggregate(folder: Path, cells: list[Path]) -> dict[str, pd.DataFrame]:
    paths = {name: folder / f"{name}.parquet" for name in ("point", "feasibility", "telemetry")}
    aggregate_points(cells, *paths.values())
    return {name: pd.read_parquet(path) for name, path in paths.items()}


def reading(level: int, device: str, time_s: float, energy_j=None, power_w=None) -> dict:
    values = {"energy_j": energy_j, "power_w": power_w, "utilization": 0.5}
    return {"level": level, "time_s": time_s, "device": device, **values}


@pytest.mark.parametrize("seed", range(2))
def test_points_equal_what_pandas_and_numpy_compute(tmp_path, seed):
    rng = np.random.default_rng(seed)
    requests = [*draw_requests(rng, 1, 40), *draw_requests(rng, 4, 300)]
    cell = write_cell(tmp_path / "cell", "m", requests)
    other = write_cell(tmp_path / "other", "n", draw_requests(rng, 1, 10), (1,))
    points = aggregate(tmp_path, [other, cell])["point"].set_index("llm_id").loc["m"]
    points = points.set_index("level")  # of its requests alone
    frame = pd.read_parquet(cell / "requests.parquet")
    for level, rows in frame.groupby("level"):
        point, ok = points.loc[level], rows[rows["status"] == "ok"]
        assert (point["n_ok"], point["n_failed"]) == (len(ok), len(rows) - len(ok))
        assert 0 < len(ok) < len(rows)
        ttft_ms = ((ok["first_token_s"] - ok["sent_s"]) * 1000).round(6)  # the clock's nanosecond
        values = {
            "ttft": ttft_ms,
            "nttft": ttft_ms / ok["input_tokens"],
            "e2e": ((ok["last_token_s"] - ok["sent_s"]) * 1000).round(6),
            "itl": np.concatenate(
                [np.diff(offsets.astype(float)) for offsets in ok["token_offsets_ms"]]
            ),
        }
        for name, numbers in values.items():
            for statistic, percentile in QUANTILES.items():
                expected = np.percentile(numbers, percentile)
                assert point[f"{statistic}_{name}_ms"] == pytest.approx(expected, rel=1e-9)
        assert point["duration_s"] == 50.0 + level
        tokens = point["throughput_tok_s"] * (50.0 + level)
        assert tokens == pytest.approx(ok["output_tokens"].sum())
        assert point["request_rate_rps"] * (50.0 + level) == pytest.approx(len(ok))
        for name in ("input_tokens", "output_tokens"):
            assert point[f"mean_{name}"] == pytest.approx(ok[name].mean())
        assert (point["users"], point["batch_weight_tokens"]) == (level, 4000)
        assert point["client_lag_p99_ms"] == 0.5 and pd.isna(point["energy_j"])
        assert pd.isna(point["server_mean_itl_ms"]) if level == 1 else True


@pytest.mark.parametrize(("weight_bits", "precision"), [(0.0, "bf16"), (8.0, "as its config says")])
def test_a_point_says_what_served_it_and_when(tmp_path, weight_bits, precision):
    server = ServerFacts("vllm", "0.32.0", precision="bfloat16")
    engine = {"extra_arguments": ["--enforce-eager"] if weight_bits else []}
    definition = {"llm": {"weight_bits": weight_bits}, "engine": engine}
    origin = replace(cells.ORIGIN, definition=definition)
    cell = cells.write_cell(
        tmp_path / "cell",
        [cells.request(1.0), cells.request(2.0)],
        levels={2.0: {"conditions": LevelConditions(engine_version="0.33.0")}},
        run={"server": server, "origin": origin},
    )
    points = aggregate(tmp_path, [cell])["point"]
    assert points["engine"].tolist() == ["vllm", "vllm"]
    assert points["engine_version"].tolist() == ["0.32.0", "0.33.0"]
    assert points["precision"].fillna("as its config says").tolist() == [precision] * 2
    assert points["measured_on"].tolist() == ["2026-01-02"] * 2
    assert points["cuda_graphs"].isna().tolist() == [not weight_bits] * 2
    assert not points["cuda_graphs"].fillna(False).any()


@pytest.mark.parametrize("n_requests", [0, 10])
def test_a_level_at_which_nothing_was_served_is_a_point_without_latencies(tmp_path, n_requests):
    rows = draw_requests(np.random.default_rng(0), 4, n_requests)
    for row in rows:
        row |= {"status": "timeout"}
    points = aggregate(tmp_path, [write_cell(tmp_path / "c", "m", rows)])["point"]
    assert points["level"].tolist() == [1, 4]
    assert points["n_ok"].tolist() == [0, 0] and points["n_failed"].tolist() == [0, n_requests]
    assert (points[["throughput_tok_s", "request_rate_rps"]] == 0).all(axis=None)
    assert points[["mean_input_tokens", "mean_output_tokens"]].isna().all(axis=None)
    latencies = [name for name in points if name.split("_")[0] in QUANTILES]
    assert len(latencies) == 20 + 40 and points[latencies].isna().all(axis=None)


def test_an_infeasible_cell_has_no_point_but_a_verdict(tmp_path):
    rng = np.random.default_rng(0)
    cells = [
        write_cell(tmp_path / "large", "large", [], levels=()),
        write_cell(tmp_path / "small", "small", draw_requests(rng, 1, 20), levels=(1,)),
    ]
    tables = aggregate(tmp_path, cells)
    assert tables["point"]["llm_id"].tolist() == ["small"]
    verdicts = tables["feasibility"].set_index("llm_id")
    assert verdicts["is_feasible"].to_dict() == {"large": False, "small": True}
    assert verdicts["verdict"].to_dict() == {"large": "weights_too_large", "small": "feasible"}
    assert verdicts.loc["large", "reason"].startswith("does not fit: the weights take 9.000 GiB")
    assert pd.isna(verdicts.loc["large", "batch_weight_tokens"])
    assert verdicts["n_server_starts"].to_dict() == {"large": 0, "small": 2}


def test_energy_is_what_the_meters_gained_over_a_level(tmp_path):
    power = [
        reading(1, "gpu0", 0.0, 1000.0, 100.0),
        reading(1, "gpu0", 51.0, 1300.0, 200.0),
        reading(1, "gpu1", 0.0, 50.0, 90.0),
        reading(1, "gpu1", 51.0, 60.0, 90.0),
        reading(4, "gpu0", 20.0),
    ]
    rows = [row | {"status": "ok"} for row in draw_requests(np.random.default_rng(3), 1, 5)]
    rows = [row | {"input_tokens": 9, "output_tokens": 2} for row in rows]
    tables = aggregate(tmp_path, [write_cell(tmp_path / "c", "m", rows, power=power)])
    points = tables["point"].set_index("level")
    assert points.loc[1, "energy_j"] == 310.0 and pd.isna(points.loc[4, "energy_j"])
    assert points.loc[1, "energy_per_request_j"] == 62.0  # five requests
    assert points.loc[1, "energy_per_output_token_j"] == 31.0
    assert points.loc[1, "mean_power_w"] == 240.0
    devices = tables["telemetry"].set_index(["level", "device"])
    assert devices.loc[(1, "gpu0"), "mean_power_w"] == 150.0
    assert devices.loc[(1, "gpu0"), "max_power_w"] == 200.0
    assert devices.loc[(1, "gpu1"), "energy_j"] == 10.0
    assert pd.isna(devices.loc[(4, "gpu0"), "mean_power_w"])
    assert devices.loc[(4, "gpu0"), "mean_utilization"] == 0.5


@pytest.mark.parametrize(
    ("kind", "ttft_ms", "users"), [("closed_loop", 100.0, 4), ("open_loop", 350.0, None)]
)
def test_what_waited_for_its_turn_counts_unless_it_had_none(tmp_path, kind, ttft_ms, users):
    (row,) = draw_requests(np.random.default_rng(0), 4, 1)
    row |= {"scheduled_s": 9.75, "sent_s": 10.0, "first_token_s": 10.1, "last_token_s": 10.2}
    row |= {"token_offsets_ms": [100.0, 200.0], "input_tokens": 10, "output_tokens": 2}
    row |= {"status": "ok"}
    cell = write_cell(tmp_path / "c", "m", [row], (4,), kind=kind)
    (point,) = aggregate(tmp_path, [cell])["point"].to_dict("records")
    assert point["median_ttft_ms"] == point["mean_ttft_ms"] == ttft_ms
    assert point["mean_e2e_ms"] == ttft_ms + 100.0
    assert point["scenario_kind"] == kind
    assert point["users"] == users if users else pd.isna(point["users"])


def test_a_rate_of_infinity_and_a_rate_below_one_are_levels(tmp_path):
    levels = (0.5, float("inf"))
    rows = [row for level in levels for row in draw_requests(np.random.default_rng(0), 4, 8)]
    rows = [row | {"level": level} for row, level in zip(rows, np.repeat(levels, 8), strict=True)]
    cell = write_cell(tmp_path / "c", "m", rows, levels, kind="open_loop")
    tables = aggregate(tmp_path, [cell])
    assert tables["point"]["level"].tolist() == [0.5, float("inf")]
    assert (tables["point"]["n_ok"] + tables["point"]["n_failed"]).tolist() == [8, 8]
    build_store(tmp_path / "s.duckdb", {}, {"point": [str(tmp_path / "point.parquet")]})
    assert tables_of(tmp_path / "s.duckdb")["point"]["level"].tolist() == [0.5, float("inf")]


def test_half_a_level_is_not_a_point(tmp_path):
    rows, whole = [cells.request(1.0), cells.request(2.0)], {2.0: {"n_unfinished": 1}}
    cell = cells.write_cell(tmp_path / "c", rows, levels=whole, run={"is_complete": False})
    assert aggregate(tmp_path, [cell])["point"]["level"].tolist() == [1]


def test_the_order_of_cells_does_not_matter(tmp_path):
    rng = np.random.default_rng(0)
    cells = [write_cell(tmp_path / n, n, draw_requests(rng, 4, 30)) for n in "cab"]
    first = aggregate(tmp_path / "first", cells)
    random.Random(0).shuffle(cells)
    again = aggregate(tmp_path / "again", cells[::-1])
    for name, table in first.items():
        pd.testing.assert_frame_equal(table, again[name])
    origin = read_provenance(tmp_path / "first" / "point.parquet")
    assert len(origin["inputs_sha256"]) == 3
    assert origin["engine_versions"] == ["0.32.0"]


def tables_of(path: Path) -> dict[str, pd.DataFrame]:
    with connect(path, read_only=True) as database:
        names = [name for (name,) in database.execute("SHOW TABLES").fetchall()]
        return {name: database.execute(f"FROM {name} ORDER BY ALL").df() for name in names}


@pytest.fixture
def parts(tmp_path):
    """What a store is built from: some rows, and files of points and feasibility."""
    rng = np.random.default_rng(0)
    cells = [write_cell(tmp_path / n, n, draw_requests(rng, 4, 30)) for n in "ab"]
    aggregate(tmp_path, cells)
    rows = {"slo": [{"slo_id": "chat", "nttft_ms": 5.0, "itl_ms": 50.0, "unknown": "left out"}]}
    files = {name: [tmp_path / f"{name}.parquet"] for name in ("point", "feasibility")}
    return rows, files


def test_rebuilding_gives_the_same_tables(tmp_path, parts):
    for name in ("one", "two"):
        build_store(tmp_path / f"{name}.duckdb", *parts)
    one, two = tables_of(tmp_path / "one.duckdb"), tables_of(tmp_path / "two.duckdb")
    assert one.keys() == two.keys() and {"llm", "point", "score", "provenance"} < one.keys()
    for name, table in one.items():
        pd.testing.assert_frame_equal(table, two[name])
    assert len(one["point"]) == 4 and len(one["feasibility"]) == 2
    assert one["slo"].loc[0, "itl_ms"] == 50.0
    assert pd.isna(one["slo"].loc[0, "users"])  # what the rows lack is null
    facts = dict(one["provenance"].itertuples(index=False))
    assert json.loads(facts["sextant_version"])
    with connect(tmp_path / "one.duckdb", read_only=True) as store, pytest.raises(duckdb.Error):
        store.execute("DELETE FROM point")


def test_points_that_stand_twice_are_refused(tmp_path, parts):
    rows, files = parts
    path = tmp_path / "store" / "sextant.duckdb"
    twice = {**files, "point": files["point"] * 2}
    with pytest.raises(InputError, match=r"point\.parquet: rows of table point have the same key"):
        build_store(path, rows, twice)
    assert list(path.parent.iterdir()) == []


def test_a_build_that_fails_leaves_the_database_of_before(tmp_path, parts):
    rows, files = parts
    path = tmp_path / "store" / "sextant.duckdb"
    build_store(path, rows, files)
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"damaged\.parquet: cannot be read .*Fix: delete it"):
        build_store(path, rows, {**files, "point": [damaged]})
    assert len(tables_of(path)["point"]) == 4
    assert list(path.parent.iterdir()) == [path]


DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[:10_000],
    "flipped": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "of a newer version": lambda content: content[:12] + b"\xff" + content[13:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_store_is_named_and_what_to_do(tmp_path, parts, damage):
    path = tmp_path / "sextant.duckdb"
    build_store(path, *parts)
    before = tables_of(path)
    path.write_bytes(damage(path.read_bytes()))
    said = r"sextant\.duckdb: the store cannot be read \(.*Fix: build it again: delete it"
    with pytest.raises(InputError, match=said), open_store(path) as store:
        store.execute("SELECT count(*) FROM point").fetchall()
    path.unlink()
    build_store(path, *parts)
    for name, table in tables_of(path).items():
        pd.testing.assert_frame_equal(table, before[name])


def test_a_store_that_another_process_writes_is_told_from_a_damaged_one(tmp_path, parts):
    path = tmp_path / "sextant.duckdb"
    build_store(path, *parts)
    writer = "import duckdb, sys; held = duckdb.connect(sys.argv[1]); print(1, flush=True); input()"
    command = [sys.executable, "-c", writer, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        said = f"PID {other.pid}.*Fix: end the process that holds the store"
        with pytest.raises(InputError, match=said):
            open_store(path).__enter__()
        build_store(path, *parts)  # a new file takes its place: who holds the old one does not mind
        with open_store(path) as store:
            assert store.execute("SELECT count(*) FROM point").fetchone() == (4,)
        other.communicate(b"\n")


def test_a_kill_while_the_store_is_built_leaves_the_one_of_before(tmp_path, parts):
    path = tmp_path / "store" / "sextant.duckdb"
    build_store(path, *parts)
    before = path.read_bytes()
    code = """
import os, pathlib, signal, sys
from sextant.points import store
def die(*arguments, **facts):  # the last step: all rows are inserted
    os.kill(os.getpid(), signal.SIGKILL)
store.base_files.provenance = die
store.build_store(pathlib.Path(sys.argv[1]), {}, {"point": [pathlib.Path(sys.argv[2])]})"""
    command = [sys.executable, "-c", code, str(path), str(parts[1]["point"][0])]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert path.read_bytes() == before


@pytest.mark.parametrize("limit_bytes", [5_000, 100_000, 1_000_000])
def test_a_disk_that_fills_up_leaves_the_store_of_before(tmp_path, parts, limit_bytes):
    # The rows fit where they are logged first; the blocks of the database do not.
    path = tmp_path / "store" / "sextant.duckdb"
    build_store(path, *parts)
    before = path.read_bytes()
    code = """
import pathlib, resource, signal, sys
from sextant.base.errors import InputError
from sextant.points import store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    store.build_store(pathlib.Path(sys.argv[1]), {}, {"point": [pathlib.Path(sys.argv[2])]})
except InputError as error:
    print(error)"""
    point = str(parts[1]["point"][0])
    command = [sys.executable, "-c", code, str(path), point, str(limit_bytes)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert f"{path.parent}: no room to write sextant.duckdb" in done.stdout, done.stderr
    assert path.read_bytes() == before
