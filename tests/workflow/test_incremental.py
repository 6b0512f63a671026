"""What a change runs again, to the job and to the cell; measurements are never thrown away.

Every list is Snakemake's own, of a dry run. Those of one addition stand in docs/cluster.md too,
which a test compares; `python tests/workflow/test_incremental.py` prints the table.
"""

import itertools
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from forked_snakemake import Jobs, dry_run, run
from interrupted import InterruptedRun, scratch_place
from project import COPIED, Project
from support import FAKE_PYTHON, ROOT, wait_for

Change = Callable[[Project], None]

LLMS = ("llm-opt-6m", "llm-llama-16m", "llm-bigcode-21m", "llm-neox-34m")
PROFILES = ("1xcpu-core", "2xcpu-core")
STORED = Counter(build_store=1, write_report=1)
AFTER_POINTS = Counter(evaluate_predictor=4) + STORED
AGGREGATED = Counter(aggregate_points=1) + AFTER_POINTS
TRACE_PAGE = Counter(write_trace_report=1)


def _files(place: Path) -> list[Path]:
    found = [place, *place.rglob("*")]
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def jobs(project: Project) -> Jobs:
    return dry_run(project.folder)


def append(sheet: str, **cells: object) -> Change:
    """Add a row; columns that are not named stay empty."""

    def change(project: Project) -> None:
        lines = project.sheet(sheet).read_text().splitlines()
        header = next(line for line in lines if not line.startswith("#")).split("\t")
        assert set(cells) <= set(header)
        row = "\t".join(str(cells.get(column, "")) for column in header)
        project.sheet(sheet).write_text("\n".join([*lines, row]) + "\n")

    return change


def ask_for(llms: str, profiles: str, workload: str, scenario: str) -> Change:
    """Add a row of cells to measure."""
    cells = {"llm_ids": llms, "gpu_profile_ids": profiles, "workload_id": workload}
    return append("benchmarks", **cells, scenario_id=scenario)


def replace(path: str, old: str, new: str) -> Change:
    def change(project: Project) -> None:
        file = project.folder / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return change


def edit(pattern: str) -> Change:
    """Add a comment to all files of a pattern below scripts/."""

    def change(project: Project) -> None:
        files = [path for path in (project.folder / "scripts").glob(pattern)]
        assert files
        for path in files:
            path.write_text(path.read_text() + "\n# an edit\n")

    return change


def together(*changes: Change) -> Change:
    def change(project: Project) -> None:
        for one in changes:
            one(project)

    return change


def nothing(project: Project) -> None:
    pass


_SHORT = {"workload_id": "short", "use_case": "summarization"}
NEW_WORKLOAD = append("workloads", **_SHORT, max_input_tokens=512, max_output_tokens=64)
ADDITIONS: dict[str, Change] = {
    "LLM": append("llms", llm_id="new", config="resources/llms/demo-qwen2-26m.json"),
    "GPU profile": append(
        "gpu_profiles", gpu_profile_id="3xcpu-core", gpu_id="cpu-core", n_gpus=3, usd_per_hour=0.12
    ),
    # Its row asks for all LLMs on one of the GPU profiles.
    "workload": together(NEW_WORKLOAD, ask_for("*", "1xcpu-core", "short", "users-1-8")),
    "SLO": append("demo/slos", slo_id="new", nttft_ms=1, itl_ms=2, percentile=90, users=3),
}
TWISTS: dict[str, Change] = {
    "nothing": nothing,
    "another price": replace("config/gpu_profiles.tsv", "\t0.08", "\t0.16"),
    "another SLO": replace("config/demo/slos.tsv", "chat\t0.5", "chat\t0.6"),
    "an edit of the whole library": edit("sextant/**/*.py"),
}
SUBSETS = [
    added for n in range(len(ADDITIONS) + 1) for added in itertools.combinations(ADDITIONS, n)
]


def expected_cells(added: tuple[str, ...]) -> set[str]:
    """Return the cells that additions ask for and that were not measured."""
    llms = (*LLMS, "new") if "LLM" in added else LLMS
    profiles = (*PROFILES, "3xcpu-core") if "GPU profile" in added else PROFILES
    asked = {f"{llm} {gpus} conversation users-1-8" for llm in llms for gpus in profiles}
    if "workload" in added:
        asked |= {f"{llm} 1xcpu-core short users-1-8" for llm in llms}
    return asked - {f"{llm} {gpus} conversation users-1-8" for llm in LLMS for gpus in PROFILES}


def expected_rules(added: tuple[str, ...], twist: str = "nothing") -> Counter[str]:
    n_cells = len(expected_cells(added))
    rules = Counter(benchmark_cell=n_cells) | (AGGREGATED if n_cells else Counter())
    if added or twist != "nothing":
        rules |= AFTER_POINTS
    if "workload" in added:
        rules |= Counter(fit_workload=1)
    if twist == "an edit of the whole library":
        rules |= AGGREGATED | TRACE_PAGE
    return +rules


COMBINED = [
    pytest.param(
        *(added, twist),
        id=f"{'+'.join(added) or 'nothing'}-{twist}",
        # Of combinations within a twist the least and the largest say most.
        marks=[pytest.mark.slow] if twist != "nothing" and 0 < len(added) < len(ADDITIONS) else [],
    )
    for added, twist in itertools.product(SUBSETS, TWISTS)
]


@pytest.mark.parametrize(("added", "twist"), COMBINED)
def test_additions_run_just_what_they_must(project, added: tuple[str, ...], twist: str) -> None:
    together(*(ADDITIONS[name] for name in added), TWISTS[twist])(project)
    planned = jobs(project)
    assert planned.by_rule == expected_rules(added, twist)
    assert planned.cells() == expected_cells(added)


ALL_CELLS = {f"{llm} {gpus} conversation users-1-8" for llm in LLMS for gpus in PROFILES}
MEASURED_AGAIN = Counter(benchmark_cell=8) + AGGREGATED
BURSTS = "bursts\topen_loop\t2\t0\t1\tfitted"
CHANGES: dict[str, tuple[Change, Counter[str], set[str]]] = {
    "another level": (replace("config/scenarios.tsv", "1,2", "1,2,4"), MEASURED_AGAIN, ALL_CELLS),
    "more memory on a device": (
        replace("resources/gpus/cpu-core.yaml", "memory_gib: 0.125", "memory_gib: 0.25"),
        MEASURED_AGAIN,
        ALL_CELLS,
    ),
    "another config of an LLM": (
        replace("resources/llms/demo-opt-6m.json", '"ffn_dim": 1024', '"ffn_dim": 2048'),
        Counter(benchmark_cell=2) + AGGREGATED,
        {f"llm-opt-6m {gpus} conversation users-1-8" for gpus in PROFILES},
    ),
    "another cap of the workload": (
        replace("config/workloads.tsv", "\t512\t", "\t256\t"),
        Counter(fit_workload=1) + MEASURED_AGAIN + TRACE_PAGE,
        ALL_CELLS,
    ),
    "another trace": (
        replace("resources/traces/azure-2023-conv-sample.csv", ",ok", ",ok "),
        Counter(ingest_trace=1, fit_workload=1) + MEASURED_AGAIN + TRACE_PAGE,
        ALL_CELLS,
    ),
    "a trace that was copied": (
        lambda project: (project.folder / "resources/traces/azure-2023-conv-sample.csv").touch(),
        Counter(),
        set(),
    ),
    "another pin of the environment": (replace("environment.yml", "- ", "-  "), Counter(), set()),
    "another bandwidth of a device": (
        replace("resources/gpus/cpu-core.yaml", "bandwidth_gb_s: 15", "bandwidth_gb_s: 20"),
        AFTER_POINTS,
        set(),
    ),
    "a workload that no row uses": (
        NEW_WORKLOAD,
        STORED + Counter(fit_workload=1),
        set(),
    ),
    "a scenario with the trace's arrivals": (
        together(
            replace("config/scenarios.tsv", "duration_s\n", "duration_s\tarrivals\n"),
            replace("config/scenarios.tsv", "0.4\n", f"0.4\t\n{BURSTS}\n"),
            ask_for("llm-opt-6m", "*", "conversation", "bursts"),
        ),
        Counter(benchmark_cell=2) + AGGREGATED,
        {f"llm-opt-6m {gpus} conversation bursts" for gpus in PROFILES},
    ),
    "another name of a workload": (
        together(
            replace("config/workloads.tsv", "conversation\tazure", "talk\tazure"),
            replace("config/benchmarks.tsv", "conversation", "talk"),
            replace("config/demo.yaml", "workload_id: conversation", "workload_id: talk"),
        ),
        Counter(fit_workload=1) + MEASURED_AGAIN + TRACE_PAGE,
        {name.replace("conversation", "talk") for name in ALL_CELLS},
    ),
    "a level less": (replace("config/scenarios.tsv", "1,2", "1"), AGGREGATED, set()),
    "what a hub writes into a config.json": (
        replace("resources/llms/demo-opt-6m.json", "{", '{"_name_or_path": "a/b", \n'),
        AFTER_POINTS,
        set(),
    ),
    "another seed": (
        replace("config/config.yaml", "seed: 20241003", "seed: 1"),
        Counter(fit_workload=2) + MEASURED_AGAIN + TRACE_PAGE,
        ALL_CELLS,
    ),
    "a comment in a sheet": (
        replace("config/llms.tsv", "llm_id\t", "#\nllm_id\t"),
        STORED,
        set(),
    ),
    "an edit of a page's script": (
        edit("sextant/recommend/what_if.js"),
        Counter(write_report=1),
        set(),
    ),
    "an edit of the law of roofline": (
        edit("sextant/law/terms.py"),
        AFTER_POINTS - Counter(evaluate_predictor=3),
        set(),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_runs_just_what_it_must(project, name: str) -> None:
    change, rules, cells = CHANGES[name]
    change(project)
    planned = jobs(project)
    assert planned.by_rule == rules
    assert planned.cells() == cells


def test_a_rerun_says_which_field_has_changed(project) -> None:
    replace("config/scenarios.tsv", "0.4", "0.5")(project)
    done = project.snakemake("--dry-run", "--nolock", "--cores", "2")
    assert "Measured again: 8 cells, duration_s 0.4 → 0.5\n" in done.stderr
    plan = project.sextant("plan", "--format", "json")
    changes = json.loads(plan.stdout)["changes"]
    assert changes == ["Measured again: 8 cells, duration_s 0.4 → 0.5"]


def test_an_edit_that_was_touched_and_undone_measures_nothing(finished, tmp_path) -> None:
    project = finished.copy(tmp_path / "touched")
    replace("config/scenarios.tsv", "0.4", "0.5")(project)
    assert run(project.folder, "--touch", "--cores", "2")[0] == 0
    replace("config/scenarios.tsv", "0.5", "0.4")(project)
    assert not jobs(project).cells()


def test_one_more_level_measures_one_level(finished, tmp_path) -> None:
    """Also in between; a level that is taken out and comes back is still there."""
    project = finished.copy(tmp_path / "more")
    place = "results/benchmarks/measured/llm-opt-6m/1xcpu-core/conversation/users-1-8"
    points = "results/points/measured/point.parquet"

    def requests() -> dict[float, list[float]]:
        rows = pd.read_parquet(project.folder / place / "requests.parquet")
        return {level: sorted(of_level["sent_s"]) for level, of_level in rows.groupby("level")}

    def levels_of_points() -> set[int]:
        rows = pd.read_parquet(project.folder / points)
        return {*rows.loc[rows["llm_id"] == "llm-opt-6m", "users"]}

    before = requests()
    for llm in LLMS[1:]:
        replace("config/llms.tsv", next(_lines_with(project, llm)), "")(project)
    replace("config/scenarios.tsv", "1,2\t", "1,2,4\t")(project)
    assert run(project.folder, "--cores", "2", points)[0] == 0
    after = requests()
    assert {level: after.pop(level) for level in before} == before
    assert [*after] == [4] and levels_of_points() == {1, 2, 4}

    replace("config/scenarios.tsv", "1,2,4\t", "2,4\t")(project)
    assert run(project.folder, "--cores", "2", points)[0] == 0
    assert levels_of_points() == {2, 4}
    replace("config/scenarios.tsv", "2,4\t", "1,2,4\t")(project)
    assert not jobs(project).cells()


def _lines_with(project: Project, name: str) -> Iterator[str]:
    lines = project.sheet("llms").read_text().splitlines(keepends=True)
    return (line for line in lines if line.startswith(name))


# A module of each room, and what an edit of it runs again: what imports it, but neither the
# measurements nor what they are made from.
EDITS: dict[str, Counter[str]] = {
    "answer/answer.py": Counter(write_report=1),
    "api/recommend.py": Counter(),
    "ask/question.py": Counter(write_report=1),
    "base/files.py": AGGREGATED + TRACE_PAGE,
    "base/job_log.py": AGGREGATED + TRACE_PAGE,
    "bench/tuning.py": Counter(),
    "capacity/capacity.py": Counter(),
    "cli/app.py": Counter(),
    "decide/sizing.py": AFTER_POINTS,
    "deploy/settings.py": Counter(write_report=1),
    "engine/vllm_command.py": Counter(),
    "experiment/loading.py": AFTER_POINTS,
    "facts/slo.py": AGGREGATED,
    "facts/gpu.py": AGGREGATED,
    "facts/llm_families.py": AGGREGATED,
    "fleet/plan.py": Counter(),
    "judge/score.py": AFTER_POINTS,
    "law/terms.py": AFTER_POINTS - Counter(evaluate_predictor=3),
    "load/client.py": Counter(),
    "pages/charts.py": TRACE_PAGE + Counter(write_report=1),
    "plan/run_plan.py": Counter(),
    "points/metrics.py": AGGREGATED,
    "points/frame.py": AGGREGATED,
    "points/summarize.py": AGGREGATED,
    # Read by the other three by its name alone.
    "predict/llm_pilot.py": AFTER_POINTS - Counter(evaluate_predictor=3),
    "recommend/recommend.py": Counter(),
    "report/write.py": Counter(write_report=1),
    "report/trace_traffic.py": TRACE_PAGE,
    "rightsize/rightsize.py": Counter(),
    "serve/server.py": Counter(),
    "simulate/cache_depths.py": TRACE_PAGE,
    "simulate/steps.py": Counter(write_report=1),
    "studies/pareto.py": Counter(),  # the project has no study
    "trace/rules.py": TRACE_PAGE,  # the page says what ingest left out
    "workload/fit.py": TRACE_PAGE,
}


def test_every_room_has_a_module_in_the_table() -> None:
    library = ROOT / "scripts" / "sextant"
    assert {Path(module).parts[0] for module in EDITS} == {
        path.parent.name for path in library.glob("*/__init__.py")
    }


# Modules that run nothing again are edited together: then none of them does.
@pytest.mark.parametrize(
    "modules",
    [[each for each in EDITS if not EDITS[each]], *([each] for each in EDITS if EDITS[each])],
)
def test_an_edit_of_a_module_runs_just_what_imports_it(project, modules: list[str]) -> None:
    together(*(edit(f"sextant/{module}") for module in modules))(project)
    assert jobs(project).by_rule == EDITS[modules[0]]


def test_an_edit_of_all_scripts_measures_nothing(project) -> None:
    edit("*.py")(project)
    assert jobs(project).by_rule == AGGREGATED | TRACE_PAGE


def test_a_row_that_comes_and_goes_changes_nothing(project) -> None:
    before = {
        name: project.sheet(name).read_bytes() for name in ("llms", "demo/slos", "benchmarks")
    }
    together(*ADDITIONS.values())(project)
    assert jobs(project).cells() == expected_cells(tuple(ADDITIONS))
    for name in ("llms", "gpu_profiles", "workloads", "benchmarks", "demo/slos"):
        lines = project.sheet(name).read_text().splitlines(keepends=True)
        project.sheet(name).write_text("".join(lines[:-1]))
    assert {name: project.sheet(name).read_bytes() for name in before} == before
    assert jobs(project).by_rule == Counter()


def test_a_row_less_measures_nothing_again(project) -> None:
    lines = project.sheet("llms").read_text().splitlines(keepends=True)
    project.sheet("llms").write_text("".join(lines[:-1]))
    assert jobs(project).by_rule == AGGREGATED


def test_the_order_of_rows_and_the_names_of_sheets_measure_nothing(project) -> None:
    header, *rows = project.sheet("llms").read_text().splitlines(keepends=True)
    project.sheet("llms").write_text("".join([header, *reversed(rows)]))
    assert jobs(project).by_rule == STORED
    for name in ("llms", "benchmarks", "scenarios", "workloads"):
        project.sheet(name).rename(project.sheet(f"our-{name}"))
        replace("config/demo.yaml", f"config/{name}.tsv", f"config/our-{name}.tsv")(project)
    assert jobs(project).by_rule == STORED


MEASURES = {"ingest_trace", "fit_workload", "benchmark_cell"}


def test_a_copied_project_measures_nothing(finished: Project, tmp_path, monkeypatch) -> None:
    """Whether the copy keeps the dates of files (`cp -a`) or not (`cp -r`, `tar -m`).

    It uses its own library, and has the workload of a use case.
    """
    own = finished.copy(tmp_path / "here")
    NEW_WORKLOAD(own)
    monkeypatch.setenv("PYTHONPATH", str(own.folder / "scripts"))
    done = own.snakemake("--cores", "1", "results/workloads/short/requests.parquet")
    assert done.returncode == 0, done.stderr
    for name, copy_file in (("there", shutil.copy2), ("again", shutil.copyfile)):
        project = own.copy(tmp_path / name, copy_file)
        monkeypatch.setenv("PYTHONPATH", str(project.folder / "scripts"))
        planned = project.planned()
        assert not MEASURES & set(planned), planned


@pytest.fixture
def checkout(finished: Project, tmp_path: Path) -> Project:
    """A fresh checkout beside copied results: Snakemake has no records, and inputs are newer."""
    project = finished.copy(tmp_path / "checkout", shutil.copyfile)
    shutil.rmtree(project.folder / ".snakemake")
    for name in (*COPIED, "results/workloads", "results/traces"):
        for path in _files(project.folder / name):
            path.touch()
    return project


def test_a_fresh_checkout_measures_nothing(checkout: Project) -> None:
    assert not MEASURES & set(jobs(checkout).by_rule)


@pytest.mark.parametrize("name", ["another config of an LLM", "another level", "another LLM"])
def test_a_fresh_checkout_measures_what_is_new(checkout: Project, name: str) -> None:
    change, cells = ADDITIONS["LLM"], expected_cells(("LLM",))
    if name != "another LLM":
        change, _, cells = CHANGES[name]
    change(checkout)
    assert jobs(checkout).cells() == cells


@pytest.mark.slow
def test_results_stay_until_their_successors_are_whole(checkout: Project) -> None:
    """Also where the run is killed while it measures again, and where it fails."""
    replace("resources/llms/demo-opt-6m.json", '"ffn_dim": 1024', '"ffn_dim": 2048')(checkout)
    place = checkout.folder / "results" / "benchmarks" / "measured"
    target = "results/points/measured/point.parquet"

    def measured() -> dict[Path, bytes]:
        files = [path for path in place.rglob("*.*") if "partial" not in str(path)]
        return {path: path.read_bytes() for path in files if path.stem[:8] != "measured"}

    before = measured()
    with scratch_place() as scratch:
        run = InterruptedRun(checkout, Path(scratch), target)
        main = run.start()
        wait_for(lambda: list(place.glob("llm-opt-6m/*/*/*/partial")), "a cell is measured")
        run.kill(main)
        assert measured() == before
        run.unlock()
        python = checkout.folder / "no-python"
        checkout.set_config(engine__python=str(python))
        assert checkout.snakemake("--cores", "1", target).returncode == 1
        assert measured() == before
        checkout.set_config(engine__python=str(FAKE_PYTHON))
        assert jobs(checkout).cells() == CHANGES["another config of an LLM"][2]
        run.finish()
    changed = {
        path.relative_to(place).parts[0] for path, it in measured().items() if it != before[path]
    }
    assert changed == {"llm-opt-6m"}
    assert not MEASURES & set(jobs(checkout).by_rule)


@pytest.mark.parametrize(
    ("name", "more", "cells"),
    [
        # Snakemake compares the contents of files below 1 MB alone.
        ("traces/azure-2023-conv-sample.parquet", bytes(2_000_000), set()),
        ("workloads/conversation/requests.parquet", b"more", ALL_CELLS),
    ],
)
def test_another_content_of_a_workload_measures_its_cells(project, name, more, cells) -> None:
    file = project.folder / "results" / name
    content, stat = file.read_bytes(), file.stat()
    file.write_bytes(content + more)
    planned = jobs(project)
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert planned.cells() == cells
    assert cells or not MEASURES & set(planned.by_rule)


def table() -> str:
    """Return the job lists of one addition each, and of all, as docs/cluster.md has them."""
    rules = ("benchmark_cell", "fit_workload", *AGGREGATED)
    lines = ["| added | " + " | ".join(f"`{rule}`" for rule in rules) + " |"]
    lines.append("|---|" + "---:|" * len(rules))
    for added in SUBSETS:
        if 1 < len(added) < len(ADDITIONS):
            continue
        counts = expected_rules(added)
        numbers = (str(counts[rule] or "") for rule in rules)
        lines.append(f"| {', '.join(added) or 'nothing'} | " + " | ".join(numbers) + " |")
    return "\n".join(lines)


def test_the_page_has_the_job_lists() -> None:
    assert table() in (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    print(table())
