"""Measures one cell: feasibility, batch weight, then every level of the scenario."""

import logging
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sextant.benchmark.batch_weight import WeightRange, next_weight
from sextant.benchmark.burst import run_phases
from sextant.benchmark.burst_loads import BurstPlan
from sextant.benchmark.checkpoint import Checkpoint
from sextant.benchmark.definition import Cell, CellOutputs
from sextant.benchmark.levels import level_medians, measure_level
from sextant.benchmark.results import Record, write_results
from sextant.benchmark.stopping import LevelMedians, tells_nothing
from sextant.engine.devices import pick_devices
from sextant.engine.group import running_servers
from sextant.engine.vllm import EngineSettings, Server, ServerError, ServerSpec, model_folder
from sextant.errors import InputError
from sextant.llm import LLM, load_llm
from sextant.load.measure import LevelResult
from sextant.load.request import Target
from sextant.load.run import LEVEL_SEED_STRIDE
from sextant.load.source import RequestSource, unsent_parameters
from sextant.memory import Feasibility, assess
from sextant.progress import Progress
from sextant.scenarios import level_to_json
from sextant.telemetry import prometheus
from sextant.telemetry.watcher import WatchPlan, Watched, watch
from sextant.workload import load_request_model
from sextant.workload.prompts import PromptSource, RandomTokens, load_prompt_source

log = logging.getLogger(__name__)
# Room for the results of a cell; a run that ends for want of it would lose its GPU time.
_FREE_DISK_BYTES = 64 * 2**20
_MODEL_NAME = "sextant"


def measure_cell(
    cell: Cell, settings: EngineSettings, outputs: CellOutputs, progress: Progress
) -> None:
    """Measure a cell and write its results; an infeasible cell is a result too.

    What is finished is kept in `partial/` beside the results until they are whole, so that
    a measurement that was interrupted goes on from there.

    Raises:
        ServerError: the server failed for a reason other than memory.
        InputError: the workload has no cap that the LLM's context can hold, or the
            machine lacks the devices or the disk.
    """
    longest_tokens = cell.max_input_tokens + cell.max_output_tokens
    # What counts is the type that is served, not the one the weights were published in.
    llm = load_llm(cell.config_path, settings.dtype)
    if longest_tokens > llm.context_tokens:
        fix = "lower max_input_tokens or max_output_tokens of the workload"
        problem = f"requests of {longest_tokens} tokens exceed {llm.context_tokens} of context"
        raise InputError(problem, field=cell.llm_id, fix=fix)
    _require_disk(outputs.run.parent)
    feasibility = _assess(cell, llm, settings, longest_tokens)
    kept = Checkpoint(outputs.run.parent / "partial", cell.definition_sha256)
    run = _Run(cell, settings, outputs, kept, progress)
    if feasibility.is_feasible:
        with _model(cell) as folder:
            run.tune_and_load(_specs(cell, settings, llm, folder), llm, feasibility)
    write_results(cell, outputs, run.record, feasibility, kept)
    kept.remove()


def _assess(cell: Cell, llm: LLM, settings: EngineSettings, longest_tokens: int) -> Feasibility:
    """Decide from memory facts; a variant's replicas share the memory, its weight is given."""
    variant, devices = cell.variant, cell.devices
    if variant.memory_limit_gib and devices.kind == "cpu":
        limit_gib = min(variant.memory_limit_gib, devices.memory_gib * devices.n_gpus)
        devices = replace(devices, memory_gib=limit_gib / devices.n_gpus)
    utilization = settings.memory_utilization * variant.memory_share
    found = assess(llm, devices, utilization, longest_tokens)
    weight = variant.batch_weight_tokens
    if weight is None or not found.is_feasible:
        return found
    reason = "fits"
    if weight > found.max_batch_weight_tokens:
        most = found.max_batch_weight_tokens
        reason = f"does not fit: the KV cache holds {most} tokens, the variant asks for {weight}"
    elif weight < longest_tokens:
        reason = (
            f"does not fit: the variant's batch weight is {weight} tokens, "
            f"the longest request needs {longest_tokens}"
        )
    return replace(found, is_feasible=reason == "fits", reason=reason)


def _specs(
    cell: Cell, settings: EngineSettings, llm: LLM, model: Path
) -> Callable[[int], list[ServerSpec]]:
    """Return what makes the servers of a cell, one a replica, with a batch weight."""
    variant = cell.variant
    places = pick_devices(cell.devices, variant.replicas, variant.placement)
    cores = pick_cores(variant.cpu_cores) if variant.cpu_cores else None

    def with_weight(batch_weight_tokens: int) -> list[ServerSpec]:
        return [
            ServerSpec(
                model=model,
                load_format="auto" if cell.model else "dummy",
                devices=cell.devices,
                batch_weight_tokens=batch_weight_tokens,
                kv_bytes_per_token=llm.kv_bytes_per_token,
                max_request_tokens=cell.max_input_tokens + cell.max_output_tokens,
                device_indices=place,
                cpu_indices=cores,
                memory_share=variant.memory_share,
                memory_limit_gib=variant.memory_limit_gib,
                seed=cell.seed,
            )
            for place in places
        ]

    return with_weight


@contextmanager
def _model(cell: Cell) -> Iterator[Path]:
    if cell.model:
        yield Path(cell.model)
    else:
        with model_folder(cell.config_path) as folder:
            yield folder


def _prompts(cell: Cell, vocab_size: int) -> tuple[PromptSource, str]:
    """Return what makes a cell's prompts, and its name; without a tokenizer they are random."""
    tokenizer = Path(cell.model or "") / "tokenizer.json"
    if cell.prompts and cell.model and tokenizer.is_file():
        return load_prompt_source(cell.prompts, tokenizer, vocab_size=vocab_size), cell.prompts
    if cell.prompts:
        log.warning("%s has no tokenizer.json: its prompts are random token ids", cell.llm_id)
    return RandomTokens(vocab_size), "random token ids"


def _require_disk(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < _FREE_DISK_BYTES:
        problem = f"{free / 2**20:.0f} MiB of disk are free, {_FREE_DISK_BYTES / 2**20:.0f} needed"
        raise InputError(problem, file=folder, fix="free some space and run again")
