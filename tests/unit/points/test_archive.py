"""The import of a published characterization, on a small invented archive and on LLM-Pilot's."""

import csv
import hashlib
import io
import json
import logging
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sextant.base.errors import InputError
from sextant.base.files import read_json
from sextant.experiment.downloads import load_registry
from sextant.points.cell_files import REQUEST_SCHEMA
from sextant.points.summarize import aggregate_points
from support import ROOT, script

archive_script = script("resources/llm-pilot/import_archive.py")
import_archive = archive_script.import_archive
SHEETS = ("manifest.csv", "cells.tsv", "published_points.csv")
SHIPPED = ROOT / "resources" / "llm-pilot"
RAW = "preprocess_data/raw"
START_MS = 1_700_000_000_000
ALPHA = {"model": "org/alpha", "n_gpus": 1, "gpu_type": "T4"}
BETA = {"model": "beta", "n_gpus": 2, "gpu_type": "A100"}
CELLS = """# after a table
llm_id\tgpu_profile_id\tstatus
org__alpha\t1xT4-16GB\tmeasured
org__alpha\t2xA100-40GB\tomitted
beta\t1xT4-16GB\ttoo_small
beta\t2xA100-40GB\tmeasured
"""
PUBLISHED = """llm_id,gpu_profile_id,users,median_nttft_ms,median_itl_ms
beta,2xA100-40GB,4,6.102272727272728,50.0
"""


def request(start_ms: int, latencies_ms: list, tokens=(10, 3), status=200, errors="[]") -> dict:
    """Return a row as LLM-Pilot writes one; a failed request has no token counts."""
    row = {"smpnum": 7, "errors": errors, "status": status, "experiment_duration_s": 120}
    row |= {"start_timestamp": START_MS + start_ms, "latency_ms_per_token": str(latencies_ms)}
    names, is_ok = ("n_input_tokens", "n_output_tokens"), status == 200
    return row | {name: float(n) if is_ok else "" for name, n in zip(names, tokens, strict=True)}


OUT_OF_MEMORY = """['{"code":2,"message":"Unexpected <class \\'OutOfMemoryError\\'>, """ + "x" * 400
FILES = {
    "results_org__alpha_gpu1_t4_u1.csv": [
        request(40, [20, 162, 30, 50]),
        request(0, [20, 100], tokens=(25, 1)),
    ],
    "results_org__alpha_gpu1_t4_u4.csv": [
        request(0, [5, 80, 20]),
        request(3, [9], status=408, errors=OUT_OF_MEMORY),
        request(5, [9, 70, 20], status=408),
        request(9, [9], status=9999, errors="""['{"message":"context deadline exceeded"}']"""),
    ],
    "results_beta_gpu2_a100_u1.csv": [request(500, [10, 90, 11, 13])],
}


def write_results(path: Path, rows: list[dict]) -> None:
    facts = ALPHA if "alpha" in path.name else BETA
    users = int(path.stem.rpartition("_u")[2])
    # As in the original, some files have one more column in front.
    leading = {"": 0, "Unnamed: 0": 0} if "_u4" in path.name else {"": 0}
    with path.open("w", newline="") as handle:
        every = [{**leading, "num_users": users, **facts, **row} for row in rows]
        writer = csv.DictWriter(handle, fieldnames=list(every[0]))
        writer.writeheader()
        writer.writerows(every)


def write_manifest(folder: Path) -> None:
    repo, lines = folder / "repo", ["# a comment", "path,sha256"]
    for path in sorted(repo.rglob("results_*.csv")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"{path.relative_to(repo)},{digest}")
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A folder with the repository `repo` and the three sheets."""
    raw = tmp_path / "repo" / RAW
    raw.mkdir(parents=True)
    for name, rows in FILES.items():
        write_results(raw / name, rows)
    (tmp_path / "repo" / "README.md").write_text("other files are not looked at")
    (tmp_path / "cells.tsv").write_text(CELLS)
    (tmp_path / "published_points.csv").write_text(PUBLISHED)
    write_manifest(tmp_path)
    return tmp_path


def run_import(archive: Path, source: Path | None = None, out: str = "out") -> Path:
    sheets = archive_script.Sheets(*(archive / name for name in SHEETS))
    target = archive / out
    names = {"workload_id": "tgis", "scenario_id": "users"}
    import_archive(source or archive / "repo", sheets, target, **names)
    return target / "archive:llm-pilot"


def cell(out: Path, llm_id: str, profile_id: str) -> Path:
    return out / llm_id / profile_id / "tgis" / "users"


def requests(archive: Path, *ids: str, source: Path | None = None) -> pd.DataFrame:
    return pd.read_parquet(cell(run_import(archive, source), *ids) / "requests.parquet")


def aggregate(folder: Path, out: Path) -> dict[str, pd.DataFrame]:
    paths = {name: folder / f"{name}.parquet" for name in ("point", "feasibility", "telemetry")}
    aggregate_points([run.parent for run in sorted(out.rglob("run.json"))], *paths.values())
    return {name: pd.read_parquet(path) for name, path in paths.items()}


def pack(archive: Path, name: str, top: str) -> Path:
    path = archive / name
    with tarfile.open(path, f"w:{name.rpartition('.')[2]}") as tar:
        tar.add(archive / "repo", arcname=top)
    return path


def test_a_request_is_sent_when_its_stream_is_acknowledged(archive):
    rows = requests(archive, "org__alpha", "1xT4-16GB")
    assert rows.columns.tolist() == REQUEST_SCHEMA.names
    assert rows["level"].tolist() == [1, 1, 4, 4, 4, 4]
    first = rows.iloc[0]
    times = first[["scheduled_s", "sent_s", "first_token_s", "last_token_s"]]
    assert times.tolist() == [0.04, 0.06, 0.222, 0.302]
    assert first["token_offsets_ms"].tolist() == [162.0, 192.0, 242.0]
    assert (first["input_tokens"], first["output_tokens"]) == (10, 3)
    assert first["status"] == "ok" and pd.isna(first["error"])
    assert rows.iloc[1]["token_offsets_ms"].tolist() == [100.0]  # one token has no gap
    assert rows[["user", "requested_input_tokens", "requested_output_tokens"]].isna().all(axis=None)


def test_failed_requests_are_kept_with_what_the_server_said(archive):
    rows = requests(archive, "org__alpha", "1xT4-16GB")
    failed = rows[rows["status"] != "ok"]
    assert failed["status"].tolist() == ["incomplete", "incomplete", "timeout"]
    errors = failed["error"].tolist()
    assert errors[0].startswith("status 408 ['{") and len(errors[0]) == 300
    assert errors[1] == "status 408 []" and errors[2].startswith("status 9999 [")
    assert failed[["input_tokens", "output_tokens"]].isna().all(axis=None)
    assert failed["first_token_s"].isna().tolist() == [True, False, True]
    assert [len(offsets) for offsets in failed["token_offsets_ms"]] == [0, 2, 0]


def test_points_of_the_archive(archive):
    tables = aggregate(archive, run_import(archive))
    points = tables["point"].set_index(["llm_id", "users"])
    one = points.loc[("org__alpha", 1)]
    # Exact: 162 ms in seconds on a clock is 162.00000000000003 ms unless it is rounded.
    assert one["median_ttft_ms"] == 131.0 and one["median_nttft_ms"] == (16.2 + 4.0) / 2
    assert one["median_itl_ms"] == 40.0 and one["median_e2e_ms"] == (242 + 100) / 2
    assert one["throughput_tok_s"] == 4 / 120 and one["duration_s"] == 120.0
    four = points.loc[("org__alpha", 4)]
    assert (four["n_ok"], four["n_failed"], four["median_ttft_ms"]) == (1, 3, 80.0)
    assert not points["is_published_median"].loc["org__alpha"].any()
    unknown = ["batch_weight_tokens", "energy_j", "client_lag_p99_ms", "server_mean_itl_ms"]
    assert points[unknown].isna().all(axis=None)
    assert len(tables["telemetry"]) == 0


def test_cells_that_were_not_measured_say_why(archive):
    out = run_import(archive)
    verdicts = aggregate(archive, out)["feasibility"].set_index(["llm_id", "gpu_profile_id"])
    assert verdicts["is_feasible"].sum() == 2 and len(verdicts) == 4
    reasons = verdicts["reason"]
    assert reasons["beta", "1xT4-16GB"] == "does not fit: memory too small (LLM-Pilot, Table III)"
    assert reasons["org__alpha", "2xA100-40GB"].startswith("omitted by the source: software")
    assert verdicts[["weight_gib", "batch_weight_tokens", "n_server_starts"]].isna().all(axis=None)
    run = read_json(cell(out, "beta", "1xT4-16GB") / "run.json")
    assert (run["levels"], run["started_at"], run["host"], run["server"]) == ([], None, None, None)


@pytest.mark.parametrize(
    ("name", "top"),
    [("r.tar.xz", "LLM-performance-prediction"), ("r.tar.gz", "repo-3c6648"), ("r.tar.bz2", ".")],
)
def test_a_packed_archive_gives_the_same_as_the_folder(archive, name, top):
    of_folder = run_import(archive)
    of_tar = run_import(archive, pack(archive, name, top), out="again")
    files = sorted(path.relative_to(of_folder) for path in of_folder.rglob("*.*"))
    assert len(files) == 4 * 5
    assert all((of_folder / file).read_bytes() == (of_tar / file).read_bytes() for file in files)


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_missing_or_altered_file_is_named_and_nothing_is_written(archive, is_packed):
    file = archive / "repo" / RAW / "results_org__alpha_gpu1_t4_u4.csv"
    for problem in ("was altered", "is missing"):
        if problem == "is missing":
            file.unlink()
        else:
            file.write_text(file.read_text().replace("162", "161").replace("[5, 80", "[5, 81"))
        source = pack(archive, "repo.tar.xz", "top") if is_packed else None
        with pytest.raises(InputError, match=f"u4.csv {problem}. Fix: fetch the archive again"):
            run_import(archive, source)
        assert not (archive / "out").exists()


def test_a_file_that_the_manifest_lacks_is_left_out_and_reported(archive, caplog):
    extra = archive / "repo" / RAW / "results_beta_gpu2_a100_u4.csv"
    write_results(extra, FILES["results_beta_gpu2_a100_u1.csv"])
    with caplog.at_level(logging.WARNING):
        rows = requests(archive, "beta", "2xA100-40GB")
    assert extra.name in caplog.text and "manifest" in caplog.text
    assert rows["level"].tolist() == [1]


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def test_a_member_cannot_replace_another(archive):
    sound = archive / "repo" / RAW / "results_beta_gpu2_a100_u1.csv"
    path = archive / "repo.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(archive / "repo", arcname="top")
        # A file system that ignores case would take this for the other.
        add(tar, f"top/{RAW}/RESULTS_beta_gpu2_a100_u1.csv", b"evil")
        add(tar, f"top/{RAW}/{sound.name}", sound.read_bytes())  # twice the same does no harm
    assert len(requests(archive, "beta", "2xA100-40GB", source=path)) == 1
    with tarfile.open(path, "a") as tar:
        add(tar, f"top/{RAW}/{sound.name}", b"evil")
    with pytest.raises(InputError, match="was altered"):
        run_import(archive, path)


def test_nothing_that_claims_to_be_huge_is_read(archive):
    sound = f"top/{RAW}/results_beta_gpu2_a100_u1.csv"
    bomb = archive / "bomb.tar.gz"
    with tarfile.open(bomb, "w:gz") as tar:
        add(tar, sound, b"0" * (archive_script.MAX_FILE_BYTES + 1))
    assert bomb.stat().st_size < 200_000
    with pytest.raises(InputError, match=r"bomb\.tar\.gz: .* above 64"):
        run_import(archive, bomb)
    # A sparse file of a terabyte takes a few bytes of a tar.
    sparse = tarfile.TarInfo(sound)
    sparse.size, sparse.type = 2**40, tarfile.REGTYPE
    (archive / "sparse.tar").write_bytes(sparse.tobuf(tarfile.GNU_FORMAT) + b"0" * 1024)
    with pytest.raises(InputError, match=r"sparse\.tar: .*1048576 MiB"):
        run_import(archive, archive / "sparse.tar")
    # A name of 2 MiB is read before there is a member to look at.
    long = tarfile.TarInfo("././@LongLink")
    long.size, long.type = 2**21, tarfile.GNUTYPE_LONGNAME
    (archive / "name.tar").write_bytes(long.tobuf(tarfile.GNU_FORMAT) + b"x" * 2**21)
    with pytest.raises(InputError, match="a header of 2097152 bytes"):
        run_import(archive, archive / "name.tar")
    large = archive / "repo" / RAW / "results_beta_gpu2_a100_u1.csv"
    with large.open("ab") as handle:
        handle.truncate(archive_script.MAX_FILE_BYTES + 1)
    with pytest.raises(InputError, match="above 64"):
        run_import(archive)


def test_links_to_devices_and_folders_are_passed_over(archive):
    raw = archive / "repo" / RAW
    (raw / "results_endless.csv").symlink_to("/dev/zero")
    (raw / "results_up.csv").symlink_to("/")
    os.mkfifo(raw / "results_waiting.csv")
    assert run_import(archive).is_dir()


def test_what_is_no_archive(archive):
    packed = pack(archive, "repo.tar.xz", "top")
    packed.write_bytes(packed.read_bytes()[:-300])
    (archive / "text.tar.gz").write_text("not a tar")
    for source in (packed, archive / "text.tar.gz", archive / "nothing.tar.xz"):
        with pytest.raises(InputError, match=r"cannot be unpacked .*Fix: give the repository"):
            run_import(archive, source)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"latency_ms_per_token": "[20, x]"}, "line 3, field 'latency_ms_per_token': not a list"),
        ({"latency_ms_per_token": "[20]"}, "line 3, field 'latency_ms_per_token': not a list"),
        ({"n_output_tokens": ""}, "line 3, field 'n_output_tokens': not a count"),
        ({"n_input_tokens": 3.5}, "line 3, field 'n_input_tokens': not a count"),
        ({"start_timestamp": ""}, "line 3, field 'start_timestamp': not a number"),
        ({"status": "fine"}, "cannot be read .*'fine'"),
        ({"experiment_duration_s": 60}, "line 3, field 'experiment_duration_s': not positive, or"),
        ({"model": "gamma"}, "line 3, field 'model': not beta"),
        ({"n_gpus": 4}, "line 3, field 'n_gpus': not 2"),
    ],
)
def test_a_malformed_row_is_named(archive, row, message):
    name = "results_beta_gpu2_a100_u1.csv"
    sound = {"num_users": 1, **BETA, **request(0, [20, 30])}
    write_results(archive / "repo" / RAW / name, [sound, {**sound, **row}])
    write_manifest(archive)
    with pytest.raises(InputError, match=f"{name}.*{message}"):
        run_import(archive)


@pytest.mark.parametrize(
    ("sheet", "old", "new", "message"),
    [
        ("cells.tsv", "A100-40GB\tmeasured", "A100-40GB\tomitted", "line 6: .*is omitted and has"),
        ("cells.tsv", "too_small", "measured", "line 5: .*has points at .. users"),
        ("cells.tsv", "beta\t2xA100-40GB\tmeasured\n", "", "manifest.csv: no cell"),
        ("cells.tsv", "beta\t2xA100-40GB", "beta\tA100", "line 6, field 'gpu_profile_id'"),
        ("cells.tsv", "2xA100-40GB\tomitted", "1xT4-16GB\tomitted", "line 4.*is there twice"),
        ("cells.tsv", "omitted", "lost", "line 4, field 'status'"),
        ("published_points.csv", "beta", "gamma", "published_points.csv: no cell"),
        ("published_points.csv", ",4,", ",1,", "has points at .1, 1. users"),
        ("manifest.csv", "path,", "file,", "manifest.csv, line 2, field 'file': unknown column"),
        ("manifest.csv", "results_beta", "beta", "line .*, field 'path'.*Fix: results_<llm>"),
        *(
            ("published_points.csv", "4,6.102272727272728,50.0", bad, r"points\.csv, line 2")
            for bad in ("4,nan,50.0", "4,6.1,inf", "4,-6.1,50", "0,6.1,50", "4,six,50")
        ),
    ],
)
def test_sheets_that_contradict_each_other_or_are_no_measurement(archive, sheet, old, new, message):
    path = archive / sheet
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        run_import(archive)
    assert not (archive / "out").exists()


@pytest.fixture(scope="module")
def pilot(tmp_path_factory: pytest.TempPathFactory, mirror: Path):
    """The mirror's archive, unpacked, and what the import and the store make of it."""
    folder = tmp_path_factory.mktemp("pilot")
    for name in SHEETS:
        shutil.copy(SHIPPED / name, folder)
    packed = mirror / load_registry(ROOT / "resources" / "registry.csv")["llm-pilot"].mirror_path
    with tarfile.open(packed) as tar:
        tar.extractall(folder / "raw", filter="data")
    out = run_import(folder, packed)
    return folder, aggregate(folder, out)


@pytest.mark.slow
def test_llm_pilot_is_complete(pilot):
    tables = pilot[1]
    points, verdicts = tables["point"], tables["feasibility"]
    assert (len(points), points["is_published_median"].sum()) == (528, 2)
    assert (points["n_ok"].sum(), points["n_failed"].sum()) == (795_138, 34_357)
    assert (len(verdicts), verdicts["is_feasible"].sum()) == (140, 66)
    shown = points[points["is_published_median"]].set_index("llm_id")["median_nttft_ms"]
    medians = (("bigcode__starcoder", 6.102272727272728), ("llama-7b", 5.277443105756358))
    assert shown.to_dict() == dict(medians)


@pytest.mark.slow
def test_medians_of_llm_pilot_are_exact(pilot):
    folder, tables = pilot
    points = tables["point"].copy()
    points["profile"] = points["gpu_profile_id"].str.partition("-")[0].str.lower()
    points = points.set_index(["llm_id", "profile", "users"])
    n_equal = 0
    for file in (folder / "raw").rglob("results_*.csv"):
        rows = pd.read_csv(file)
        rows = rows[rows["status"] == 200]
        entries_ms = [json.loads(text) for text in rows["latency_ms_per_token"]]
        ttft_ms = np.array([entries[1] for entries in entries_ms])
        nttft_ms, duration_s = (
            ttft_ms / rows["n_input_tokens"],
            rows["experiment_duration_s"].iloc[0],
        )
        expected = {
            "median_ttft_ms": np.nanmedian(ttft_ms),
            "median_nttft_ms": np.nanmedian(nttft_ms),
            "median_itl_ms": np.nanmedian([gap for entries in entries_ms for gap in entries[2:]]),
            "throughput_tok_s": rows["n_output_tokens"].sum() / duration_s,
        }
        name, n_gpus, gpu_type, users = file.stem.rsplit("_", 3)
        profile = f"{n_gpus.removeprefix('gpu')}x{gpu_type}"
        point = points.loc[name.removeprefix("results_"), profile, int(users[1:])]
        n_equal += all(point[name] == value for name, value in expected.items())
    assert n_equal == 526


def test_names_in_a_tar_cannot_lead_out_of_it(archive):
    path = archive / "repo.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(archive / "repo", arcname="top")
        for top in ("../../evil", "/evil", "top"):
            add(tar, f"{top}/{RAW}/results_evil.csv", b"evil")
        link = tarfile.TarInfo(f"top/{RAW}/results_link.csv")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    before = {entry.name for entry in archive.parent.iterdir()}
    run_import(archive, path)
    assert {entry.name for entry in archive.parent.iterdir()} == before
    assert not list(archive.rglob("*evil*"))


@pytest.mark.parametrize("place", ["/etc/results_beta_gpu2_a100_u1.csv", "../raw/results_b.csv"])
def test_a_manifest_cannot_name_files_elsewhere(archive, place):
    path = archive / "manifest.csv"
    path.write_text(path.read_text() + f"{place},{'0' * 64}\n")
    told = r"manifest\.csv, line 6, field 'path': .*below the repository's top, without"
    with pytest.raises(InputError, match=told):
        run_import(archive)


def test_cells_of_hostile_ids_stay_below_their_source(archive):
    names = {"workload_id": "../../w", "scenario_id": ".."}
    sheets = archive_script.Sheets(*(archive / name for name in SHEETS))
    import_archive(archive / "repo", sheets, archive / "out", **names)
    runs = list((archive / "out").rglob("run.json"))
    assert {run.parents[1].name for run in runs} == {"~2E.~2F..~2Fw"}
    assert {read_json(run)["workload_id"] for run in runs} == {"../../w"}
    assert len(runs) == 4
