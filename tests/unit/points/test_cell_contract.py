"""The contract of a measured cell: what is written is read back, and what is malformed is named."""

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cells import KEY, failed_request, request, write_cell
from sextant.base.errors import InputError
from sextant.base.files import read_json, write_json
from sextant.experiment.servers import Variant
from sextant.experiment.sheets import CellKey
from sextant.points import cell_files, run
from sextant.points.cell_files import FORMAT_VERSION, read_run, read_tuning, sealed, write_run
from sextant.points.verdict import FEASIBLE, Kind, ProbeOutcome, Verdict

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NUMBERS = {
    ProbeOutcome.FEASIBLE: {},
    ProbeOutcome.WEIGHTS_TOO_LARGE: {"weight_gib": 12.5, "usable_gib": 10.0},
    ProbeOutcome.KV_CACHE_TOO_SMALL: {"kv_tokens": 71, "longest_request_tokens": 72},
    ProbeOutcome.BATCH_WEIGHT_TOO_LARGE: {"kv_tokens": 71, "batch_weight_tokens": 80},
    ProbeOutcome.BATCH_WEIGHT_TOO_SMALL: {"batch_weight_tokens": 60, "longest_request_tokens": 72},
    ProbeOutcome.NO_BATCH_WEIGHT_PASSED: {"n_server_starts": 5},
    ProbeOutcome.HEADS_CANNOT_BE_SPLIT: {"n_heads": 7, "n_kv_heads": 1, "n_gpus": 2},
    ProbeOutcome.MEMORY_TOO_SMALL: {},
    ProbeOutcome.OMITTED: {},
}


def whole_run(**changes: Any) -> run.CellRun:
    """Return a run with a value in every field."""
    lag, medians = run.Quantiles(0.1, 0.5, 2.0), run.LevelMedians(4.0, 12, 333.3, None)
    level = {"level": math.inf, "started_s": 0.1, "duration_s": 1 / 3}
    level |= {"n_warmup_requests": 1, "n_cooldown_requests": 2, "n_prepared_late": 3}
    level |= {"client": run.ClientReport(lag, lag, "late", ("odd",)), "n_unfinished": 4}
    level |= {"server_report": run.ServerReport(20.5, 1.5, ("no NVML",)), "medians": medians}
    level |= {"conditions": run.LevelConditions("node-1", "0.32.0", 300.0, NOW)}
    level |= {"phase": {"name": "warm-up", "settings": [{"start_s": 0.0}]}}
    level |= {"published_medians": run.PublishedMedians(5.5, 50.5)}
    level |= {"sessions": {"n_sessions": 2, "n_turns": 5, "n_not_sent": 1}}
    command, devices, gpu = ("vllm", "serve"), ((0, "GPU-1"),), run.HostGPU("A", True)
    stop = run.EarlyStop(run.LevelMedians(4, 12, 333.0, 99.0), 100, 30, 2)
    facts: dict[str, Any] = {
        "source": KEY["source"],
        "key": CellKey(**{name: value for name, value in KEY.items() if name != "source"}),
        "scenario": {"kind": "open_loop", "levels": [1, "inf"]},
        "variant": Variant("pair", 2, "shared", 4000, 2, 1.5),
        "verdict": FEASIBLE,
        "server": run.ServerFacts("vllm", "1", "float16", command, None, 30.5, devices, 4000),
        "levels": (run.LevelRun(**level), run.LevelRun(0.5)),
        "left_out": run.LeftOut((8.0, math.inf), stop),
        "requests": run.SentRequests(7, "joint", "a corpus", ("batch_size",)),
        "origin": run.CellOrigin(
            started_at=NOW,
            host=run.HostFacts("n", "Linux", "x × 2", "3.11", "550", "12.4", (gpu,), False),
            definition={"scenario": {"levels": [1, "inf"]}, "seed": 7},
            definition_sha256="ab" * 32,
            provenance={"sextant_version": "1", "inputs_sha256": {"workload": "ef" * 32}},
        ),
    }
    facts |= {"batch_weight_tokens": 4000, "is_complete": False, "interruption": "SIGTERM"}
    return run.CellRun(**facts | changes)


def test_every_field_of_a_run_comes_back(tmp_path: Path) -> None:
    folder = write_cell(tmp_path)
    write_run(folder, whole_run())
    assert read_run(folder) == whole_run()
    assert cell_files.damaged_files(folder) == {}
    wrong: Any = "4000"  # the writer refuses what the reader would
    with pytest.raises(ValueError, match="batch_weight_tokens"):
        write_run(folder, replace(whole_run(), batch_weight_tokens=wrong))
    # A level has the name that sheets give it.
    assert [each["level"] for each in read_json(folder / "run.json")["levels"]] == ["inf", 0.5]


def test_a_file_has_the_fields_of_groups_one_by_one() -> None:
    content = cell_files.to_json(whole_run())
    names = "source llm_id gpu_profile_id workload_id scenario_id variant_id scenario variant "
    names += "verdict batch_weight_tokens server seed sampler prompts unsent_parameters levels "
    names += "left_out is_complete interruption started_at host definition definition_sha256 "
    assert list(content) == [*names.split(), "provenance"]
    names = "level started_s duration_s n_warmup_requests n_cooldown_requests n_prepared_late "
    names += "n_unfinished sessions client_lag_ms send_lag_ms lag_warning answer_warnings "
    names += "server_mean_itl_ms server_accepted_length telemetry_warnings "
    names += "n_other_processes host engine_version timeout_s times_since medians phase "
    names += "published_medians"
    assert [list(level) for level in content["levels"]] == 2 * [names.split()]
    assert cell_files.from_json(run.CellRun, content) == whole_run()


def test_a_cell_comes_back_with_its_tables(tmp_path: Path) -> None:
    rows = [request(1.0), request(1.0), failed_request(4.0)]
    readings = [{"level": 1.0, "replica": 0, "time_s": 0.5, "n_running": 2.0}]
    cell = cell_files.read_cell(write_cell(tmp_path, rows, server=readings, starts_s=(20.0, 30.5)))
    assert cell.run.ids == tuple(KEY.values())
    assert [level.level for level in cell.run.levels] == [1.0, 4.0]
    assert list(cell.requests(["level", "status"])["status"]) == ["ok", "ok", "timeout"]
    assert list(cell.server()["n_running"]) == [2.0]
    assert [probe.duration_s for probe in cell.tuning.probes or ()] == [20.0, 30.5]


@pytest.mark.parametrize("outcome", ProbeOutcome)
@pytest.mark.parametrize("source", [None, "a paper"])
def test_a_verdict_comes_back_and_says_its_numbers(
    outcome: ProbeOutcome, source: str | None
) -> None:
    verdict = Verdict(outcome, NUMBERS[outcome], source)
    assert cell_files.from_json(Verdict, cell_files.to_json(verdict)) == verdict
    assert verdict.is_feasible == (outcome is ProbeOutcome.FEASIBLE) == (outcome.kind is Kind.FITS)
    assert verdict.reason.startswith(outcome.kind.value)
    assert all(f"{value}" in verdict.reason for value in NUMBERS[outcome].values())
    assert (source is not None) == verdict.reason.endswith("(a paper)")


@pytest.mark.parametrize(
    ("outcome", "numbers"),
    [
        (ProbeOutcome.FEASIBLE, {"kv_tokens": 1}),
        (ProbeOutcome.WEIGHTS_TOO_LARGE, {"weight_gib": 1.0}),
    ],
)
def test_a_verdict_has_the_numbers_of_its_outcome(outcome: ProbeOutcome, numbers: dict) -> None:
    with pytest.raises(ValueError, match=f"verdict {outcome} has the numbers"):
        Verdict(outcome, numbers)
    with pytest.raises(ValueError, match=f"verdict {outcome} has the numbers"):
        cell_files.from_json(Verdict, {"outcome": outcome, "numbers": numbers, "source": None})


def changed(tmp_path: Path, name: str = "run.json", **values: Any) -> Path:
    """Write a cell of which fields of a file have other values; None as a default removes one."""
    folder = write_cell(tmp_path, [request()])
    content = {**read_json(folder / name), **values}
    content = {field: value for field, value in content.items() if value is not ...}
    write_json(folder / name, sealed(content))
    return folder


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"llm_id": ...}, "llm_id"),
        ({"batch_weight_tokens": "4000"}, "batch_weight_tokens"),
        ({"batch_weight_tokens": 1.5}, "batch_weight_tokens"),
        ({"is_feasible": True}, "is_feasible"),
        ({"levels": [{"level": "many"}]}, "levels.0.level"),
        ({"levels": [{"level": 1, "duration_s": "1"}]}, "levels.0.duration_s"),
        ({"levels": [{"level": 0}]}, "levels.0.level"),
        ({"levels": [{"level": 1e300}]}, "levels.0.level"),
        ({"levels": [{"level": 1, "n_unfinished": -1}]}, "levels.0.n_unfinished"),
        ({"levels": [{"level": 1, "client_lag_ms": {"p99": "1"}}]}, "levels.0.client_lag_ms.p99"),
        ({"levels": [{"level": 1, "client": {}}]}, "levels.0.client"),
        ({"levels": {}}, "levels"),
        ({"key": {}}, "key"),
        ({"seed": "7"}, "seed"),
        ({"verdict": {"outcome": "perhaps"}}, "verdict.outcome"),
        ({"verdict": {"outcome": "weights_too_large"}}, "verdict"),
        ({"started_at": "yesterday"}, "started_at"),
        ({"variant": {"replicas": "two"}}, "variant.replicas"),
        ({"host": {"gpus": [{"name": []}]}}, "host.gpus.0.name"),
        ({"scenario": []}, "scenario"),
        ({"probes": [{"outcome": "ok"}]}, "probes.0.batch_weight_tokens"),
        ({"memory": {"weight_gib": 1.0}}, "memory.verdict"),
    ],
)
def test_a_malformed_file_is_named_with_its_field(tmp_path: Path, values, field: str) -> None:
    name, read = "run.json", read_run
    if values.keys() <= {"probes", "memory"}:
        name, read, values = "tuning.json", read_tuning, values | {"content_sha256": ...}
    with pytest.raises(InputError) as caught:
        read(changed(tmp_path, name, **values))
    assert f"{name}, field '{field}'" in str(caught.value) and "Fix: " in str(caught.value)


@pytest.mark.parametrize("scenario", [{"levels": [1]}, {"kind": "nope"}, {"kind": [1]}])
def test_a_scenario_has_a_kind(tmp_path: Path, scenario: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"run\.json.*the scenario has no kind of closed_loop, "):
        read_run(changed(tmp_path, scenario=scenario))


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        *((None, text, "") for text in ("", "{", "[]", "7", '{"format_version": NaN}')),
        *(("77.5", value, "levels.0.duration_s") for value in ("NaN", "Infinity", "-Infinity")),
    ],
)
def test_what_is_no_json_is_named(tmp_path: Path, old, new: str, field: str) -> None:
    path = write_cell(tmp_path, [request()], durations_s={1.0: 77.5}) / "run.json"
    path.write_text(new if old is None else path.read_text().replace(old, new))
    with pytest.raises(InputError, match=rf"run\.json.*{field}"):
        read_run(tmp_path)


@pytest.mark.parametrize("version", [..., None, FORMAT_VERSION - 1, FORMAT_VERSION + 1, "2"])
@pytest.mark.parametrize(("name", "read"), [("run.json", read_run), ("tuning.json", read_tuning)])
def test_another_format_version_says_what_to_do(tmp_path: Path, version, name, read) -> None:
    folder = changed(tmp_path, name, format_version=version, content_sha256=...)
    with pytest.raises(InputError) as caught:
        read(folder)
    said = str(caught.value)
    assert f"{name}, field 'format_version'" in said
    assert f"this version of sextant reads {FORMAT_VERSION}" in said
    assert "Fix: read it with the version that wrote it, or delete it" in said
