"""Measures one cell: feasibility, batch weight, then every level of the scenario."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from sextant.benchmark.batch_weight import WeightRange, possible_gain
from sextant.benchmark.checkpoint import Checkpoint
from sextant.benchmark.corner_cases import check_corner_cases, corner_cases, request_lengths
from sextant.benchmark.definition import Cell, CellOutputs
from sextant.benchmark.measurement import Measurement
from sextant.benchmark.results import Record, write_results
from sextant.benchmark.tuning import ProbeRecord, tune_and_load
from sextant.engine.command import EngineSettings, ServerSpec
from sextant.engine.devices import pick_devices
from sextant.engine.group import running_servers
from sextant.engine.vllm import Server, model_folder
from sextant.errors import InputError
from sextant.llm import LLM, load_llm
from sextant.memory import Feasibility, assess, kv_bytes_per_device
from sextant.progress import Progress
from sextant.workload.prompts import RandomTokens

# Room for the results of a cell; a run that ends for want of it would lose its GPU time.
_FREE_DISK_BYTES = 64 * 2**20


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
    outputs.run.unlink(missing_ok=True)  # it must not vouch for the files of two runs
    feasibility = _assess(cell, llm, settings, longest_tokens)
    kept = Checkpoint(outputs.run.parent / "partial", cell.definition_sha256)
    record = Record()
    if feasibility.is_feasible:
        measurement = Measurement(cell, settings, record, kept, progress, llm.vocab_size)
        with _model(cell) as folder:
            _tune_and_load(measurement, outputs.server_log, folder, llm, feasibility)
    write_results(cell, outputs, record, feasibility, kept)
    kept.remove()


def _tune_and_load(
    measurement: Measurement, server_log: Path, model: Path, llm: LLM, feasibility: Feasibility
) -> None:
    """Search the batch weight; measure on the servers that passed the last probe."""
    cell, settings, record = measurement.cell, measurement.settings, measurement.record
    probes = ProbeRecord(measurement.kept.folder / "probes.jsonl", cell.definition_sha256)
    specs = _specs(cell, llm, model)
    lengths = request_lengths(measurement.model, cell.max_input_tokens, cell.max_output_tokens)

    def start(weight: int) -> AbstractContextManager[list[Server]]:
        number = len(probes.probes) + 1
        measurement.progress.note(f"server start {number}: batch weight {weight}")
        return running_servers(specs(weight), settings, server_log)

    def check(servers: Sequence[Server], weight: int) -> None:
        cases = corner_cases(weight, lengths, settings.max_num_seqs)
        prompts, timeout_s = RandomTokens(llm.vocab_size), settings.request_timeout_s
        check_corner_cases(servers, cases, prompts, cell.seed, timeout_s)

    limits = _weights_to_search(cell, settings, llm, feasibility)
    if tune_and_load(limits, probes, start, check, measurement.run) is None:
        record.levels, record.server = [], None  # they ran out of memory after all
    record.probes = probes.probes
    record.possible_gain = possible_gain(probes.probes, limits)


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


def _weights_to_search(
    cell: Cell, settings: EngineSettings, llm: LLM, feasibility: Feasibility
) -> WeightRange:
    variant, given = cell.variant, cell.variant.batch_weight_tokens
    # Replicas that share a device fill it together.
    n_sharing = variant.replicas if variant.placement == "shared" else 1
    return WeightRange(
        lowest_tokens=given or cell.max_input_tokens + cell.max_output_tokens,
        highest_tokens=given or feasibility.max_batch_weight_tokens,
        kv_bytes_per_token=n_sharing * kv_bytes_per_device(llm, cell.devices),
        max_starts=settings.max_server_starts,
    )


def _specs(cell: Cell, llm: LLM, model: Path) -> Callable[[int], list[ServerSpec]]:
    """Return what makes the servers of a cell, one a replica, with a batch weight."""
    variant = cell.variant
    places = pick_devices(cell.devices, variant.replicas, variant.placement)
    cores: list[tuple[int | str, ...] | None] = [None] * variant.replicas
    if variant.cpu_cores:
        wanted = replace(cell.devices, kind="cpu", n_gpus=variant.cpu_cores)
        cores = pick_devices(wanted, variant.replicas, variant.placement)

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
                cpu_indices=own_cores,
                memory_share=variant.memory_share,
                memory_limit_gib=variant.memory_limit_gib,
                seed=cell.seed,
            )
            for place, own_cores in zip(places, cores, strict=True)
        ]

    return with_weight


@contextmanager
def _model(cell: Cell) -> Iterator[Path]:
    if cell.model:
        yield Path(cell.model)
    else:
        with model_folder(cell.config_path) as folder:
            yield folder


def _require_disk(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < _FREE_DISK_BYTES:
        problem = f"{free / 2**20:.0f} MiB of disk are free, {_FREE_DISK_BYTES / 2**20:.0f} needed"
        raise InputError(problem, file=folder, fix="free some space and run again")
