"""Taking over what others measured: every verdict, every conflict, and nothing half-done."""

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cells import KEY, request, write_cell
from project import Project
from sextant.base.errors import InputError
from sextant.base.files import read_json, write_json
from sextant.base.sheets import read_configuration
from sextant.bench.definition import cell_from_definition, definition_sha256
from sextant.experiment.cells import CellKey
from sextant.experiment.loading import load_experiment
from sextant.experiment.servers import Variant
from sextant.points.cells.integrity import CELL_FILES, file_facts, sealed
from sextant.points.cells.run import CellRun, HostFacts, HostGPU, ServerFacts
from sextant.points.cells.verdict import FEASIBLE
from sextant.points.importing.decisions import Here, Status, provenance_conflicts
from sextant.points.importing.merge import Report, import_cells, report_text
from sextant.points.store.build import build_store
from sextant.points.store.points import aggregate_points

OPT = CellKey("demo-opt-6m", "1xcpu-core", "conversation", "users-1-8")
LLAMA = CellKey("demo-llama-16m", "1xcpu-core", "conversation", "users-1-8")
HOST = HostFacts(processor="a processor × 2")


@dataclass
class World:
    """A project here, and a folder of results from elsewhere."""

    here: Here
    there: Path

    def measure(self, key: CellKey, place: Path | None = None, **changes: Any) -> Path:
        """Write a cell as it was measured elsewhere; `changes` are fields of its `CellRun`."""
        ttft_s = changes.pop("ttft_s", 0.1)
        folder = (place or self.there / "benchmarks" / "measured") / key.folder
        definition = changes.pop("definition", None) or self.here.definition(key)
        inputs = changes.pop("inputs", None) or self.here.inputs_sha256(key, definition)
        run = {
            "host": HOST,
            "definition": definition,
            "definition_sha256": definition_sha256(definition, *inputs),
            "provenance": {"sextant_version": "0.1.0", "inputs_sha256": {"workload": inputs[0]}},
        }
        names = ("llm_id", "gpu_profile_id", "workload_id", "scenario_id")
        ids = {name: getattr(key, name) for name in names}
        return write_cell(folder, [request(1.0, first_token_s=ttft_s)], run=run | changes, **ids)

    def run(self, **options: Any) -> Report:
        options = {"place": self.there} | options
        return import_cells(experiment=self.here.experiment, config=self.here.config, **options)

    def taken_over(self) -> set[str]:
        found = self.here.cells.rglob("run.json")
        return {path.parent.relative_to(self.here.cells).as_posix() for path in found}


@pytest.fixture
def world(tmp_path: Path, project: Project) -> World:
    config = read_configuration(Path())
    here = Here(load_experiment(config), config)
    workload = here.results / "workloads" / "conversation" / "requests.parquet"
    workload.parent.mkdir(parents=True)
    workload.write_bytes(b"a workload")
    return World(here, tmp_path / "there")


def verdicts(report: Report) -> dict[str, int]:
    return {name: count for name, count in report.counts.items() if count}


def test_cells_are_taken_over_with_where_they_came_from(world: World) -> None:
    folder = world.measure(OPT, source="cluster-b")
    report = world.run()
    assert (verdicts(report), report.is_done) == ({"new": 1}, True)
    target = world.here.cells / OPT.folder
    for name in CELL_FILES:
        assert (target / name).read_bytes() == (folder / name).read_bytes()
    run = read_json(target / "run.json")
    assert run["source"] == "measured"
    imported = run["imported"]
    assert imported["origin"] == str(world.there)
    assert imported["place"] == "benchmarks/measured/" + OPT.folder
    assert imported["source"] == "cluster-b"
    assert imported["mixed"] == []
    assert len(imported["run_sha256"]) == 64


def test_a_second_import_does_nothing(world: World) -> None:
    world.measure(OPT)
    world.run()
    before = {path: path.stat().st_mtime_ns for path in world.here.cells.rglob("*")}
    report = world.run()
    assert verdicts(report) == {"duplicate": 1}
    assert {path: path.stat().st_mtime_ns for path in world.here.cells.rglob("*")} == before


def test_what_an_interrupted_import_left_unrecorded_is_recorded_by_the_next(world: World) -> None:
    world.measure(OPT)
    recorded: list[list[Path]] = []

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.run(after_writing=interrupted)
    report = world.run(after_writing=recorded.append)
    assert verdicts(report) == {"duplicate": 1}
    assert recorded == [[world.here.cells / OPT.folder / "run.json"]]
    world.run(after_writing=recorded.append)
    assert len(recorded) == 1
    assert not list(world.here.cells.glob(".*"))


@pytest.mark.parametrize(
    "name", ["files", "definition", "host", "server", "provenance", "levels", "verdict"]
)
@pytest.mark.parametrize(
    "value",
    [None, [], [1], "x", 7, {"a": 1}, {"sextant_version": [1], "inputs_sha256": ["x"]}],
)
def test_a_run_that_says_nothing_of_use_gets_a_verdict(world: World, name: str, value) -> None:
    forge(world.measure(OPT), **{name: value})
    assert verdicts(world.run(is_dry_run=True)) in [
        {kind: 1} for kind in ("new", "damaged", "other definition")
    ]


def test_whole_files_that_the_next_stage_could_not_read_are_damage(world: World) -> None:
    folder = world.measure(OPT)
    pq.write_table(pa.table({"other": [1]}), folder / "requests.parquet")
    facts = file_facts(folder / name for name in CELL_FILES)
    write_json(folder / "run.json", sealed(read_json(folder / "run.json") | {"files": facts}))
    [judged] = world.run().cells(Status.damaged)
    assert judged.detail == "requests.parquet has other columns"


def test_a_run_of_another_format_is_told_apart_from_damage(world: World) -> None:
    forge(world.measure(OPT), format_version=1)
    [judged] = world.run().cells(Status.damaged)
    assert "format version 1; this version of sextant reads" in judged.detail


def test_what_was_imported_can_be_imported_from_here(world: World, tmp_path: Path) -> None:
    world.measure(OPT)
    world.run()
    shutil.copytree(world.here.cells, tmp_path / "third")
    shutil.rmtree(world.here.cells)
    assert verdicts(world.run(place=tmp_path / "third")) == {"new": 1}


def test_a_dry_run_writes_nothing(world: World) -> None:
    world.measure(OPT)
    report = world.run(is_dry_run=True)
    assert (verdicts(report), report.is_done) == ({"new": 1}, False)
    assert world.taken_over() == set()
    assert "1 to take over" in report_text(report)


def test_what_nobody_asked_for_is_left_out(world: World) -> None:
    world.measure(OPT)
    stranger = CellKey("stranger", "1xcpu-core", "conversation", "users-1-8")
    world.measure(stranger, definition=world.here.definition(OPT), inputs=("0", "0"))
    assert verdicts(world.run()) == {"new": 1, "not asked for": 1}
    assert world.taken_over() == {OPT.folder}


def damage_truncate(folder: Path) -> None:
    content = (folder / "requests.parquet").read_bytes()
    (folder / "requests.parquet").write_bytes(content[:-1])


def damage_link(folder: Path) -> None:
    moved = (folder / "server.parquet").rename(folder / "elsewhere")
    (folder / "server.parquet").symlink_to(moved)


def damage_pipe(folder: Path) -> None:
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")


def forge(folder: Path, **changes: Any) -> None:
    path = folder / "run.json"
    write_json(path, sealed(read_json(path) | changes))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a truncated table": (damage_truncate, "requests.parquet has"),
    "a missing table": (lambda f: (f / "telemetry.parquet").unlink(), "telemetry.parquet is miss"),
    "no run.json": (lambda f: (f / "run.json").unlink(), "run.json is missing"),
    "half a run.json": (lambda f: (f / "run.json").write_text('{"llm'), "run.json cannot be read"),
    "a run.json that vouches for nothing": (
        lambda f: write_json(f / "run.json", {}),
        "does not say what was written",
    ),
    "a run.json without ids": (lambda f: forge(f, llm_id=None), "field 'llm_id'"),
    "a pipe": (damage_pipe, "run.json is not a file"),
    "a link": (damage_link, "server.parquet is a link"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_cell_is_named_and_left_out(world: World, name: str) -> None:
    harm, said = DAMAGES[name]
    harm(world.measure(OPT))
    world.measure(LLAMA)
    report = world.run()
    assert verdicts(report) == {"new": 1, "damaged": 1}
    assert world.taken_over() == {LLAMA.folder}
    (line,) = [line for line in report_text(report).splitlines() if OPT.folder in line]
    assert said in line


def test_names_of_folders_do_not_control_the_terminal(world: World) -> None:
    for n, escape in enumerate(("\x1b[2J", "\n     1 taken over", "\u202e")):
        cell = replace(OPT, scenario_id="another")
        folder = world.measure(cell, definition=world.here.definition(OPT))
        folder.rename(world.there / f"cell-{n}{escape}")
    (world.there / "link\x1b[2J").symlink_to(world.there)
    report = world.run()
    said = report_text(report) + "".join(it.detail for it in report.judged)
    assert len(report.judged) == 4 and all(char.isprintable() or char == "\n" for char in said)
    assert r"cell-1\n     1 taken over: no row" in report_text(report)


def test_a_damaged_cell_that_nobody_asks_for_is_no_concern(world: World) -> None:
    folder = world.measure(
        replace(OPT, scenario_id="another"), definition=world.here.definition(OPT)
    )
    (folder / "server.parquet").unlink()
    assert verdicts(world.run()) == {"not asked for": 1}


def test_another_definition_is_named_field_by_field(world: World) -> None:
    definition = world.here.definition(OPT) | {"seed": 7}
    definition["scenario"] = definition["scenario"] | {"levels": [1, 2]}
    world.measure(OPT, definition=definition)
    report = world.run()
    (judged,) = report.cells(Status.other_definition)
    assert judged.detail == (
        "scenario.levels: [1, 2] there, [1, 2, 4, 8] here; seed: 7 there, 20241003 here"
    )
    assert world.taken_over() == set()


def test_source_and_paths_of_the_machine_may_differ(world: World) -> None:
    changes = {"source": "cluster-b", "config_path": "/data/llms/opt.json"}
    world.measure(OPT, definition=world.here.definition(OPT) | changes)
    assert verdicts(world.run()) == {"new": 1}
    run = read_json(world.here.cells / OPT.folder / "run.json")
    assert run["definition"] == world.here.definition(OPT)  # as if it had been measured here


def test_random_weights_are_not_real_ones(world: World) -> None:
    world.measure(OPT, definition=world.here.definition(OPT) | {"model": "/models/opt"})
    (judged,) = world.run().cells(Status.other_definition)
    assert judged.detail == 'model: "weights" there, "random weights" here'


@pytest.mark.parametrize(("which", "said"), [(0, "workload"), (1, "the LLM's config")])
def test_the_contents_of_workload_and_config_have_to_agree(world, which: int, said: str) -> None:
    inputs = list(world.here.inputs_sha256(OPT, world.here.definition(OPT)))
    inputs[which] = "0" * 64
    world.measure(OPT, inputs=inputs)
    (judged,) = world.run().cells(Status.other_definition)
    assert judged.detail == f"{said}: other content"


def test_a_cell_without_a_definition_cannot_be_judged(world: World) -> None:
    forge(world.measure(OPT), definition=None)
    (judged,) = world.run().cells(Status.other_definition)
    assert judged.detail == "definition: not recorded there"


def test_without_the_workload_cells_cannot_be_compared(world: World) -> None:
    world.measure(OPT)
    (world.here.results / "workloads" / "conversation" / "requests.parquet").unlink()
    with pytest.raises(InputError, match="make it first: snakemake"):
        world.run()


def test_another_measurement_of_a_cell_stops_the_whole_import(world: World) -> None:
    world.measure(OPT, place=world.here.cells)
    world.measure(OPT, ttft_s=0.15, started_at=datetime(2026, 2, 2, tzinfo=UTC))
    world.measure(LLAMA)
    report = world.run()
    assert verdicts(report) == {"new": 1, "other measurement": 1}
    (conflict,) = report.all_conflicts
    assert OPT.folder in conflict
    assert "started at 2026-02-02T00:00:00+00:00 there, at 2026-01-02T03:04:05+00:00" in conflict
    assert not report.is_done
    assert world.taken_over() == {OPT.folder}  # ours


def test_allowed_conflicts_never_replace_what_is_here(world: World) -> None:
    ours = world.measure(OPT, place=world.here.cells)
    before = (ours / "run.json").read_bytes()
    world.measure(OPT, ttft_s=0.15)
    world.measure(LLAMA)
    assert world.run(allow_conflicts=True).is_done
    assert (ours / "run.json").read_bytes() == before
    assert world.taken_over() == {OPT.folder, LLAMA.folder}


def test_a_cell_that_was_given_twice_counts_once(world: World) -> None:
    first = world.measure(OPT)
    shutil.copytree(first, world.there / "a copy of it")
    assert verdicts(world.run()) == {"new": 1, "duplicate": 1}


def test_a_stale_or_half_written_cell_here_is_replaced(world: World) -> None:
    world.measure(OPT, place=world.here.cells, definition=world.here.definition(OPT) | {"seed": 7})
    (world.here.cells / LLAMA.folder).mkdir(parents=True)
    (world.here.cells / LLAMA.folder / "requests.parquet").write_bytes(b"half")
    theirs = [world.measure(key, ttft_s=0.15) for key in (OPT, LLAMA)]
    assert verdicts(world.run()) == {"new": 2}
    for key, folder in zip((OPT, LLAMA), theirs, strict=True):
        name = "requests.parquet"
        assert (world.here.cells / key.folder / name).read_bytes() == (folder / name).read_bytes()


PROVENANCE = {
    "engine": (
        {"server": ServerFacts("vllm", "0.33.0")},
        "engine: vllm 0.33.0 there, vllm 0.32.0 here",
    ),
    "sextant": ({"provenance": {"sextant_version": "0.2.0"}}, "sextant: 0.2.0 there, 0.1.0 here"),
    "driver": (
        {"host": replace(HOST, gpu_driver="570")},
        "GPU driver of 1xcpu-core: 570 there, 550 here",
    ),
    "GPU": (
        {"host": replace(HOST, gpu_driver="550", gpus=(HostGPU("A"), HostGPU("A")))},
        "GPUs of 1xcpu-core: A there, B here",
    ),
    "processor": (
        {"host": replace(HOST, processor="another × 64")},
        "processor of 1xcpu-core: another × 64 there, a processor × 2 here",
    ),
}


@pytest.mark.parametrize("name", PROVENANCE)
def test_other_versions_and_machines_are_conflicts(world: World, name: str) -> None:
    changes, said = PROVENANCE[name]
    host = replace(HOST, gpu_driver="550", gpus=(HostGPU("B"),))
    world.measure(LLAMA, place=world.here.cells, host=host)
    world.measure(OPT, **changes)
    report = world.run()
    assert report.conflicts == (said,)
    assert world.taken_over() == {LLAMA.folder}
    assert said in report_text(report)
    assert world.run(allow_conflicts=True).is_done
    run = read_json(world.here.cells / OPT.folder / "run.json")
    assert run["imported"]["mixed"] == [said]


def test_the_store_says_that_it_is_mixed(world: World, tmp_path: Path) -> None:
    changes, said = PROVENANCE["engine"]
    world.measure(LLAMA, place=world.here.cells)
    world.measure(OPT, **changes)
    world.run(allow_conflicts=True)
    cells = [world.here.cells / key.folder for key in (OPT, LLAMA)]
    tables = {name: tmp_path / f"{name}.parquet" for name in ("point", "feasibility", "telemetry")}
    aggregate_points(cells, *tables.values())
    build_store(tmp_path / "s.duckdb", {}, {name: [path] for name, path in tables.items()})
    with duckdb.connect(str(tmp_path / "s.duckdb"), read_only=True) as database:
        rows = database.sql("SELECT value FROM provenance WHERE key = 'mixed'").fetchall()
    assert [json.loads(value) for (value,) in rows] == [[said]]


def run_of(profile: str, version: str | None = "0.32.0", **host: Any) -> CellRun:
    return CellRun(
        **KEY | {"gpu_profile_id": profile},
        scenario={"kind": "batch"},
        variant=Variant(),
        verdict=FEASIBLE,
        server=None if version is None else ServerFacts("vllm", version),
        host=HostFacts(**host),
    )


def test_machines_are_compared_within_a_gpu_profile_only() -> None:
    a, b = run_of("1xA", processor="x"), run_of("1xB", processor="y")
    assert provenance_conflicts([b], [a]) == []
    assert provenance_conflicts([run_of("1xA", processor="y")], [a]) == [
        "processor of 1xA: y there, x here"
    ]


def test_an_import_may_not_be_mixed_in_itself() -> None:
    mixed = [run_of("1xA", "0.32.0"), run_of("1xB", "0.33.0")]
    assert provenance_conflicts(mixed, []) == ["engine: vllm 0.32.0, vllm 0.33.0 there, none here"]


def test_what_was_not_recorded_agrees_with_anything() -> None:
    infeasible = run_of("1xA", None, gpu_driver=None)
    assert provenance_conflicts([infeasible], [run_of("1xA", gpu_driver="550")]) == []
    # here is mixed already, by the same versions
    here = [run_of("1xA", "0.32.0"), run_of("1xA", "0.33.0")]
    assert provenance_conflicts([run_of("1xA", "0.33.0")], here) == []


def test_of_a_server_that_ran_already_its_own_version_counts_and_no_machine() -> None:
    def measured(version: str, processor: str) -> CellRun:
        server = ServerFacts("endpoint", version, url="http://h:1")
        return replace(run_of("1xA", processor=processor), server=server)

    here = [run_of("1xA", "0.32.0", processor="x"), measured("9.1", "x")]
    assert provenance_conflicts([measured("9.1", "y")], here) == []
    conflicts = provenance_conflicts([measured("9.2", "x")], here)
    assert conflicts == ["engine of http://h:1: endpoint 9.2 there, endpoint 9.1 here"]


def tar_of(world: World, path: Path, *more: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        archive.add(world.there, "results")
        for member in more:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, 1 if kind == tarfile.REGTYPE else 0
    return info


def test_a_tar_is_as_good_as_a_folder(world: World, tmp_path: Path) -> None:
    world.measure(OPT)
    place = tar_of(world, tmp_path / "cells.tar.gz")
    assert verdicts(world.run(place=place)) == {"new": 1}
    run = read_json(world.here.cells / OPT.folder / "run.json")
    assert run["imported"]["origin"] == str(place)
    assert run["imported"]["place"] == "results/benchmarks/measured/" + OPT.folder


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (member("/etc/evil"), "leaves the tar's folder"),
        (member("results/../../evil"), "leaves the tar's folder"),
        (member("results/link", tarfile.SYMTYPE, "/etc"), "is not a plain file"),
        (member("results/hard", tarfile.LNKTYPE, "results/run.json"), "is not a plain file"),
        (member("results/pipe", tarfile.FIFOTYPE), "is not a plain file"),
    ],
    ids=lambda value: value.name if isinstance(value, tarfile.TarInfo) else "",
)
def test_a_tar_that_would_leave_its_folder_is_refused(world, tmp_path, bad, said) -> None:
    world.measure(OPT)
    with pytest.raises(InputError, match=said):
        world.run(place=tar_of(world, tmp_path / "cells.tar.gz", bad))
    assert world.taken_over() == set()
    assert not (tmp_path / "evil").exists()


def test_what_is_no_tar_or_half_of_one_is_refused(world: World, tmp_path: Path) -> None:
    world.measure(OPT)
    whole = tar_of(world, tmp_path / "cells.tar.gz").read_bytes()
    half = tmp_path / "half.tar.gz"
    half.write_bytes(whole[: len(whole) // 2])
    text = tmp_path / "text.tar"
    text.write_text("no tar")
    for place in (half, text):
        with pytest.raises(InputError, match="neither a folder nor a tar"):
            world.run(place=place)
    assert world.taken_over() == set()


def test_a_folder_without_cells_is_an_error(world: World) -> None:
    # Other stages have files of the same names.
    for name in ("requests.parquet", "telemetry.parquet"):
        (world.there / "studies").mkdir(parents=True, exist_ok=True)
        (world.there / "studies" / name).write_bytes(b"x")
    with pytest.raises(InputError, match="no cell is in it"):
        world.run()


def test_an_archive_measures_nothing_that_could_be_added_to(world: World) -> None:
    world.measure(OPT)
    config = world.here.config | {"archive": {"data": "llm-pilot"}}
    with pytest.raises(InputError, match="imports an archive"):
        import_cells(world.there, world.here.experiment, config)


def test_unfinished_levels_are_no_cells(world: World) -> None:
    folder = world.measure(OPT)
    shutil.copytree(folder, folder / "partial" / "level-1")
    assert verdicts(world.run()) == {"new": 1}


def test_a_file_that_changes_while_it_is_copied_leaves_no_cell(world: World, monkeypatch) -> None:
    folder = world.measure(OPT)

    def harm(files: list[Path]) -> None:
        damage_truncate(folder)

    with pytest.raises(InputError, match=r"requests\.parquet has"):
        world.run(before_writing=harm)
    assert world.taken_over() == set()


def test_the_sha256_of_a_definition_is_the_one_that_measuring_records(world: World) -> None:
    definition = world.here.definition(OPT)
    workload = world.here.results / "workloads" / "conversation" / "requests.parquet"
    cell = cell_from_definition(definition, workload)
    inputs = world.here.inputs_sha256(OPT, definition)
    assert cell.definition_sha256 == definition_sha256(definition, *inputs)
    assert json.loads(json.dumps(cell.definition)) == definition
