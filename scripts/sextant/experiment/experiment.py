"""An experiment: what a configuration and its sheets ask for, its cells and their definitions."""

import hashlib
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from sextant.base.files import read_object, sha256_file, write_text
from sextant.base.sheets import Row, file_name, hints_of, load_sheet
from sextant.experiment import servers
from sextant.experiment.downloads import Dataset
from sextant.experiment.scenarios import WINDOWS_FILE, Burst, Scenario, plain
from sextant.experiment.servers import Endpoint, Variant
from sextant.experiment.sheets import DEFAULT_VARIANT, CellKey, CellRow, ChosenCellRow
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.facts.slo import SLO
from sextant.trace.choice import TraceChoice
from sextant.workload.request_model import N_BINS

# SLURM's executor makes one folder of a job's wildcards; file systems allow it 255 bytes.
_MAX_CELL_NAME_CHARACTERS = 230
Ids = Mapping[str, Collection[str]]  # the ids that each sheet defines, by the name of the sheet
ORIGINS = ("use_case", "input_tokens", "output_tokens")
LLM_CONFIG = "llm_config"
"""Key of a definition that has the parsed `config.json`; cells from before it have its SHA-256."""
_NO_MATTER = ("_", "transformers_version")
"""How keys of a `config.json` begin that no server reads: each upload to a hub changes them."""
_TRACE_READING = ("columns", "time_unit", "where", "status_words")
"""Columns of traces.tsv that say how the source is read; they are newer than some cells."""
ADAPTIVE = "adaptive"  # what `choose` is in rows whose cells are chosen


def cells_of_studies(rows: list[Row], ids: Ids) -> dict[str | None, tuple[CellKey, ...]]:
    """Return the cells of each study.

    The key None has the cells of rows without a study, the key `ADAPTIVE` those of adaptive rows.
    Raises InputError if an id is unknown, or a cell's name is too long for a file.
    """
    cells: dict[str | None, dict[CellKey, None]] = {}
    for row in rows:
        for name in ("workload", "scenario"):
            check_known(row[f"{name}_id"], ids[f"{name}s"], row, f"{name}_id")
        selected = []
        for name in ("llm", "gpu_profile", "variant"):
            defined_ids = ids[f"{name}s"]
            text = row.get(f"{name}_ids", DEFAULT_VARIANT)  # only variants may be left out
            names = list(defined_ids) if text == "*" else [part.strip() for part in text.split(",")]
            for value in names:
                check_known(value, defined_ids, row, f"{name}_ids")
            selected.append(names)

        llms, profiles, variants = selected
        load = [row["workload_id"]], [row["scenario_id"]]
        chosen = itertools.product(llms, profiles, *load, variants)
        for cell in (CellKey(*ids_of_cell) for ids_of_cell in chosen):
            if len(cell.folder) > (most := _MAX_CELL_NAME_CHARACTERS):
                problem = f"the names of {cell.folder} have {len(cell.folder)} characters"
                fix = f"shorten one of its ids: {most} together fit into a file name"
                raise row.error(problem, None, fix)
            cells.setdefault(row.get("choose", row.get("study")), {})[cell] = None

    return {study: tuple(keys) for study, keys in cells.items()}


def archived_cells(path: str, ids: Ids, decision: Mapping[str, str]) -> list[CellKey]:
    """Return the cells of an archive; InputError if an id is unknown, or a cell is there twice."""
    cells: dict[CellKey, None] = {}
    for row in load_sheet(path, CellRow):
        for name in ("llm", "gpu_profile"):
            check_known(row[f"{name}_id"], ids[f"{name}s"], row, f"{name}_id")
        key = CellKey(row["llm_id"], row["gpu_profile_id"], **decision)
        if key in cells:
            problem = f"{key.llm_id} on {key.gpu_profile_id} has two rows"
            raise row.error(problem, None, "remove one of the rows")
        cells[key] = None
    return list(cells)


def check_known(value: str, defined_ids: Collection[str], row: Row, field: str) -> None:
    """Raise InputError if an id is not defined."""
    if value not in defined_ids:
        raise row.error(f"unknown id {value!r}", field, f"use one of: {', '.join(defined_ids)}")


Chosen = dict[CellKey, tuple[int, ...]]  # the users to measure, by cell


def check_adaptive(rows: Sequence[Row], decision: Mapping[str, str]) -> None:
    """Raise InputError if an adaptive row has another load than `decision`, a study, a variant."""
    other = ", or leave `choose` empty to measure all cells"
    for row in (row for row in rows if row.get("choose") == ADAPTIVE):
        for name, wanted in decision.items():
            if row[name] != wanted:
                problem = f"an adaptive row of another {name} than the configuration's `decision`"
                raise row.error(problem, name, f"write {wanted!r}{other}")
        for name in ("study", "variant_ids"):
            if name in row:
                problem = "answers rest on the default variant, and studies on whole sheets"
                raise row.error(problem, name, f"leave it out{other}")


def chosen_path(config: Mapping[str, Any]) -> Path:
    """Return where the sheet of chosen cells lies."""
    return Path(config["pathvars"]["results"]) / "adaptive" / f"{file_name(config['source'])}.tsv"


def chosen_cells(config: Mapping[str, Any], candidates: Sequence[CellKey]) -> Chosen:
    """Return the candidates that were chosen, by their sheet; InputError: the sheet is damaged."""
    path = chosen_path(config)
    if not candidates or not path.exists():
        return {}

    pairs = {(key.llm_id, key.gpu_profile_id): key for key in candidates}
    chosen = {}
    for row in load_sheet(path, ChosenCellRow):
        users = tuple(map(int, row["levels"].split(",")))
        if list(users) != sorted(set(users)):
            fix = "write each number of users once, in ascending order"
            raise row.error(f"{row['levels']} do not ascend", "levels", fix)
        if key := pairs.get((row["llm_id"], row["gpu_profile_id"])):
            chosen[key] = users

    return chosen


def add_chosen(path: Path, chosen: Chosen, *, is_new: bool) -> int:
    """Add cells to the sheet, and return the number of their round; 0: measured before."""
    rows = load_sheet(path, ChosenCellRow) if path.exists() else []
    number = 1 + max((row["round"] for row in rows), default=0) if is_new else 0
    head = "\t".join(hints_of(ChosenCellRow)) + "\n"
    text = path.read_text(encoding="utf-8") if path.exists() else head
    for key, users in chosen.items():
        text += f"{number}\t{key.llm_id}\t{key.gpu_profile_id}\t{','.join(map(str, users))}\n"
    write_text(path, text)
    return number


@dataclass(frozen=True)
class AdaptiveCells:
    """Cells that `sextant measure` chooses from."""

    candidates: tuple[CellKey, ...] = ()  # cells of adaptive rows and of no other row
    chosen: Chosen = field(default_factory=dict)  # the candidates chosen so far


@dataclass(frozen=True)
class FleetRows:
    """What teams want served on a cluster, and its nodes; empty without these sheets."""

    demands: list[Row]
    supply: list[Row]


@dataclass(frozen=True)
class Experiment:
    """Everything a run needs to know, by id."""

    traces: dict[str, Row]
    workloads: dict[str, Row]
    llms: dict[str, Row]
    llm_facts: dict[str, LLM]
    profiles: dict[str, GPUProfile]
    scenarios: dict[str, Scenario]
    variants: dict[str, Variant]
    slos: dict[str, SLO]
    """All SLOs; first those for users or a request rate, then those for the traffic of a trace."""
    cells: tuple[CellKey, ...]
    """All cells to measure, those that were chosen of the adaptive ones included."""
    adaptive: AdaptiveCells
    studies: dict[str, tuple[CellKey, ...]]
    """The cells that feed each study named in benchmarks.tsv."""
    datasets: dict[str, Dataset]
    features: dict[str, list[Row]]
    """Rows of the sheets `llms` and `gpus` that replace features computed from facts, if any."""
    endpoints: dict[tuple[str, str], Endpoint]  # servers that run already, by LLM and GPU profile
    fleet: FleetRows

    def scenario(self, key: CellKey) -> Scenario:
        """Return the load of a cell: its scenario, at the levels that were chosen for the cell."""
        scenario = self.scenarios[key.scenario_id]
        levels = tuple(map(float, self.adaptive.chosen.get(key, ())))
        return replace(scenario, levels=levels) if levels else scenario

    @property
    def point_slos(self) -> dict[str, SLO]:
        """The SLOs that measured points answer: for users or a request rate."""
        return {name: slo for name, slo in self.slos.items() if slo.trace_id is None}

    @property
    def trace_slos(self) -> dict[str, SLO]:
        """The SLOs for the traffic of a trace."""
        return {name: slo for name, slo in self.slos.items() if slo.trace_id is not None}

    @property
    def capacity_slos(self) -> dict[str, SLO]:
        """The SLOs whose replicas a simulation finds: for a trace, or a workload at a rate."""
        if not self.workloads:  # an archive has none, and no trace
            return {}
        rated = {
            name: slo for name, slo in self.point_slos.items() if slo.request_rate_rps is not None
        }
        return self.trace_slos | rated

    def endpoint(self, key: CellKey) -> Endpoint | None:
        """Return where the servers of a cell run already; None if the pipeline starts them."""
        return self.endpoints.get((key.llm_id, key.gpu_profile_id))


def cell_definition(
    experiment: Experiment, key: CellKey, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all that a cell's measurement depends on: no price, SLO or limit of time."""
    llm = experiment.llms[key.llm_id]
    workload = experiment.workloads[key.workload_id]
    scenario = experiment.scenario(key)
    devices = experiment.profiles[key.gpu_profile_id].devices

    definition = {
        "source": config["source"],
        **asdict(key),
        "config_path": llm["config"],
        LLM_CONFIG: _read_config(llm["config"]),
        "model": llm.get("model"),
        "devices": {name: getattr(devices, name) for name in ("kind", "n_gpus", "memory_gib")},
        "max_input_tokens": workload["max_input_tokens"],
        "max_output_tokens": workload["max_output_tokens"],
        "scenario": plain(scenario),
        "variant": servers.without_defaults(experiment.variants[key.variant_id]),
        "seed": config["seed"],
        "sampler": workload.get("sampler", "joint"),
        "prompts": workload.get("prompts"),
        "workload": _made_from(experiment, workload),
        "engine": servers.engine_facts(servers.engine_settings(config, experiment.endpoint(key))),
    }
    if isinstance(scenario, Burst):
        definition["windows_sha256"] = sha256_once(WINDOWS_FILE)

    return definition


def _read_config(path: str) -> Any:
    """Return what a server reads of a `config.json`."""
    return _without_marks(read_object(path))


def _without_marks(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kept = {name: it for name, it in value.items() if not name.startswith(_NO_MATTER)}
    return {name: _without_marks(it) for name, it in kept.items()}


def without_levels(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a level of a cell depends on, whichever other levels the cell has."""
    scenario = {name: it for name, it in definition["scenario"].items() if name != "levels"}
    return {name: it for name, it in definition.items() if name != "config_path"} | {
        "scenario": scenario
    }


def workload_definition(experiment: Experiment, workload_id: str, seed: int) -> dict[str, Any]:
    """Return the part of a cell's definition that says how its workload is made."""
    workload = experiment.workloads[workload_id]
    caps = {name: workload[name] for name in ("max_input_tokens", "max_output_tokens")}
    return {**caps, "seed": seed, "workload": _made_from(experiment, workload)}


def _made_from(experiment: Experiment, workload: Row) -> dict[str, Any]:
    """Return what a workload is made from: a trace, a use case, or two lengths."""
    made_from: dict[str, Any] = {"n_bins": workload.get("n_bins", N_BINS)}
    if "prompts" in workload:
        made_from["prompts_sha256"] = sha256_once(workload["prompts"])
    if "trace_id" in workload:
        trace = experiment.traces[workload["trace_id"]]
        made_from |= {
            "format": trace["format"],
            "max_rejected_fraction": trace.get("max_rejected_fraction", 0.01),
            # Left out where they are not given: cells from before these columns stay valid.
            **{name: trace[name] for name in _TRACE_READING if name in trace},
            **choice_of(workload).facts,
            "sha256": trace_sha256(experiment, workload["trace_id"]),
        }
    else:
        made_from |= {name: workload[name] for name in ORIGINS if name in workload}
    return made_from


def choice_of(workload: Mapping[str, Any]) -> TraceChoice:
    """Return which requests of its trace a workload takes."""
    return TraceChoice(workload.get("llm"), workload.get("service"))


def trace_sha256(experiment: Experiment, trace_id: str) -> str:
    """Return the SHA-256 of a trace's source: the registry's, or that of a local file."""
    name = experiment.traces[trace_id]["dataset"]
    dataset = experiment.datasets.get(name)
    return dataset.sha256 if dataset else sha256_once(name)


def sha256_once(path: str | Path) -> str:
    """Return a file's SHA-256; the file is read again only after a change."""
    state = Path(path).stat()
    return _sha256_at(Path(path).absolute(), state.st_mtime_ns, state.st_size)


@cache
def _sha256_at(path: Path, mtime_ns: int, size_bytes: int) -> str:
    return sha256_file(path)


def inputs_sha256(
    definition: Mapping[str, Any], workload: str | Path, config: str | Path
) -> tuple[str, ...]:
    """Return the SHA-256 of the files whose contents a cell depends on besides its definition.

    They are the workload (`requests.parquet`), `arrivals.json` beside it if the scenario asks for
    the workload's arrivals, and the LLM's config where the definition does not have it parsed.
    """
    files = [Path(workload)]
    if LLM_CONFIG not in definition:
        files.append(Path(config))
    if isinstance(definition["scenario"].get("arrivals"), str):
        files.append(Path(workload).with_name("arrivals.json"))
    return tuple(map(sha256_once, files))


def definition_sha256(definition: Mapping[str, Any], *inputs: str) -> str:
    """Return the SHA-256 of a definition and of the SHA-256 of its inputs (`inputs_sha256`)."""
    facts = [definition, *inputs]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
