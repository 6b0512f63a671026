"""The LLM as it is asked to be served: its facts, engine and layout, filled in from the source."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd

from sextant.ask.question import PARALLEL, PIPELINE_STORE, Question
from sextant.ask.source import Source
from sextant.base.errors import InputError
from sextant.facts.engine import (
    DEFAULT_ENGINE,
    ServerOptions,
    has_cuda_graphs,
    scheduler_sheet,
    version_numbers,
)
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import (
    DTYPES,
    LLM,
    config_file,
    kv_precision_of,
    load_llm,
    precision_of,
    served,
    shipped_config,
)
from sextant.facts.llm_config import encoded_inputs
from sextant.facts.llm_reading import read_whole_llm
from sextant.points.characterization import Characterization
from sextant.points.frame import GRAPHS, LENGTHS, SERVING
from sextant.workload.lengths import Length, RequestLengths


class Precision(NamedTuple):
    """One of the two precisions that an LLM is served in."""

    option: str
    """Field of a question."""
    column: str
    """Column of points."""
    what: str
    """What people call it."""
    of_llm: Callable[[LLM], str]
    """Returns the precision of a configuration."""


PRECISIONS = (
    Precision("dtype", "precision", "weights", precision_of),
    Precision("kv_dtype", "kv_precision", "the KV cache", kv_precision_of),
)
_USUAL_SHARE = 0.1
"""An engine version counts as usual if this share of the engine's points have it."""


class Serving(NamedTuple):
    """Lengths of the requests, engine, precisions, layout, steps and speculation."""

    requests: RequestLengths
    engine: str | None
    engine_version: str | None
    precision: str | None
    kv_precision: str | None
    prefix_hit_rate: float
    speculative: str | None = None
    draft_tokens: int | None = None
    accepted_length: float | None = None
    data_parallel: float | None = None  # as in `Question`
    expert_parallel: float | None = None
    enforce_eager: bool = False
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None

    def facts(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        facts = self._asdict()
        means = (length.mean for length in facts.pop("requests"))
        facts |= {name: "all" for name in PARALLEL if facts[name] == math.inf}
        return {**dict(zip(LENGTHS, means, strict=True)), **facts}

    def columns(self) -> dict[str, Any]:
        """Return its columns in the keys of a design matrix."""
        layout = {name: getattr(self, name) for name in PARALLEL}
        graphs = False if self.enforce_eager else None
        return {**dict.fromkeys(SERVING), **self.facts(), **layout, GRAPHS: graphs}

    @property
    def usual_options(self) -> ServerOptions:
        """What is stated of a server beside its share of the memory and the limits of a step."""
        return ServerOptions(self.engine_version or "", is_eager=self.enforce_eager)

    @property
    def server_options(self) -> ServerOptions:
        """What is stated of a server beside its share of the memory."""
        return self.usual_options._replace(
            max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.max_num_batched_tokens
        )

    def slots(self, gpu_profile: GPUProfile) -> int | None:
        """Return the requests that a copy of attention decodes at once; None: not known."""
        engine = self.engine or DEFAULT_ENGINE
        if self.max_num_seqs is not None or not has_cuda_graphs(engine):
            return self.max_num_seqs
        return scheduler_sheet(engine, self.engine_version or "", gpu_profile.devices).max_num_seqs

    def copies(self, gpu_profile: GPUProfile) -> float:
        """Return how many copies of attention a replica on a GPU profile has."""
        return min(self.data_parallel or 1, gpu_profile.n_gpus)


def find_llm(question: Question, characterization: Characterization) -> LLM:
    """Return the facts of the LLM that is asked about, in the precisions of the question.

    A measured LLM has the facts of the characterization. An LLM that was not measured is taken to
    be served in the data type of the measured ones, unless the question says which.

    Raises:
        InputError: the LLM is unknown, or another LLM of this name was measured.
    """
    llm_id = question.llm_name
    llms = characterization.llms
    config = question.hf_config
    precisions = question.precision, question.kv_precision
    if question.sizes is not None:
        return served(question.sizes.llm(), *precisions)

    if llm_id not in llms:
        if config is None:
            shipped = shipped_config(llm_id.replace("/", "__"))
            fix = f"give {shipped or 'its config.json'} (--hf-config) for a prediction, or "
            fix += f"one that was measured: {', '.join(llms)}"
            if not PIPELINE_STORE.is_file():
                fix += "; those of the demo are known after `make demo`"
            problem = f"{characterization.source} has no LLM {llm_id!r}"
            raise InputError(problem, field="--llm", fix=fix)
        dtype = _dtype_of(question, characterization)
        return served(read_whole_llm(config_file(config), dtype).llm, *precisions)

    llm = llms[llm_id]
    if config is not None and load_llm(config_file(config), llm.dtype) != llm:
        fix = f"ask with --llm {llm_id}, or rename the file"
        problem = f"{characterization.source} has another LLM that is called {llm_id!r}"
        raise InputError(problem, file=config, fix=fix)
    if not question.is_answered_by_points(characterization):
        return served(llm, *precisions)
    if assumptions := question.assumptions:
        problem = f"{llm_id} was measured as it is: nothing is predicted of it"
        fix = "leave it out, or describe the LLM with --hf-config"
        raise InputError(problem, field=f"--{assumptions[0].replace('_', '-')}", fix=fix)
    return llm


def _dtype_of(question: Question, characterization: Characterization) -> str | None:
    """Return the data type in which an LLM that was not measured is served; None: its own."""
    usual_dtype: str | None = next(iter(characterization.llms.values())).dtype
    if any(description.dtype is None for description in characterization.descriptions):
        usual_dtype = None  # each LLM of the source has its own
    return DTYPES.get(question.precision or "", usual_dtype)


def config_notes(question: Question, characterization: Characterization) -> list[str]:
    """Return what was assumed of an LLM whose config is given, and what is not counted."""
    is_measured = question.llm_name in characterization.llms
    config = question.hf_config or shipped_config(question.llm_name)
    if config is None or question.sizes is not None:
        return []
    notes: list[str] = []
    has_encoder = False
    if not is_measured:
        dtype = _dtype_of(question, characterization)
        reading = read_whole_llm(config_file(config), dtype)
        notes += reading.assumed
        has_encoder = reading.llm.beside_weight_bytes > 0
    if inputs := encoded_inputs(config_file(config)):
        what = " and ".join(inputs)
        memory = "time" if has_encoder and "sound" not in inputs else "memory and time"
        notes.append(f"Not counted: {what}, their tokens, and the encoder's {memory}.")
    return notes


def as_measured(
    question: Question, characterization: Characterization, *, has_options: bool = True
) -> tuple[Question, list[str]]:
    """Return the question in the precisions in which its LLM was measured, and notes on them.

    Only a precision that the question leaves open is filled in. Where the points differ, or the
    configuration is given, it is the configuration's precision, or that of most points if none was
    served so.

    Args:
        question: what is asked.
        characterization: the measurements.
        has_options: whether the notes may name options: without, the person cannot choose.
    """
    if question.sizes is not None:
        return question, [question.sizes.description()]
    llm_id = question.llm_name
    points = characterization.points[characterization.points["llm_id"] == llm_id]
    if points.empty or question.is_answered_by_points(characterization):
        return question, []

    llm = characterization.llms[llm_id]
    notes = []
    if question.hf_config is not None:
        sources = " and ".join(points["source"].unique())
        notes.append(f"{llm_id} was measured by {sources}: those measurements are used.")
    is_on_engine = points["engine"] == question.engine
    if is_on_engine.any():
        points = points[is_on_engine]

    chosen: dict[str, Any] = {}
    for precision in PRECISIONS:
        points = _in_weights(points, chosen.get("dtype") or question.precision)
        if getattr(question, precision.option) is not None or points[precision.column].isna().all():
            continue
        option = f" (--{precision.option.replace('_', '-')} chooses)" * has_options
        configured = precision.of_llm(llm)
        counts = points[precision.column].fillna(configured).value_counts()
        is_configured = configured in counts or question.hf_config is not None
        assumed = chosen[precision.option] = configured if is_configured else str(counts.index[0])
        if len(counts) > 1 or assumed not in counts:
            measured = " and ".join(sorted(counts.index))
            text = f"{llm_id} was measured with {precision.what} in {measured}: "
            notes.append(f"{text}{assumed} is assumed{option}.")
        elif assumed != configured:
            text = f"{llm_id} is taken to be served with {precision.what} in {assumed}, "
            text += f"as it was measured, not in the {configured} of its configuration"
            notes.append(f"{text}{option}.")
    return replace(question, **chosen), notes


def _in_weights(points: pd.DataFrame, precision: str | None) -> pd.DataFrame:
    """Return the points of servers with weights in a precision; all where there are none."""
    is_asked = points["precision"] == precision
    return points[is_asked] if is_asked.any() else points


def serving_of(question: Question, source: Source) -> Serving:
    """Return what the question says, filled in with what is usual in the source.

    The engine is that of most points. Its version is the newest that a tenth of its points have: a
    few points, or a nightly build, say little of others. Lengths are those that the LLM itself was
    measured with, if its points are of one workload; else the source's.
    """
    points = source.characterization.points
    requests = question.requests
    if requests is None:
        measured = measured_lengths(question, source).median()
        means = [source.input_tokens, source.output_tokens]
        if not measured.isna().any():
            means = [float(mean) for mean in measured]
        requests = RequestLengths(*(Length(mean, 0.0) for mean in means))

    engines = points["engine"].dropna()
    engine = question.engine or (engines.mode().iloc[0] if len(engines) else None)
    shares = points.loc[points["engine"] == engine, "engine_version"].value_counts(normalize=True)
    versions = shares[shares >= min(_USUAL_SHARE, shares.max())].index
    return Serving(
        requests,
        engine,
        max(versions, key=version_numbers, default=None),
        question.precision,
        question.kv_precision,
        question.prefix_hit_rate,
        data_parallel=question.data_parallel,
        expert_parallel=question.expert_parallel,
        enforce_eager=question.enforce_eager,
        max_num_seqs=question.max_num_seqs,
        max_num_batched_tokens=question.max_num_batched_tokens,
        gpu_memory_utilization=question.gpu_memory_utilization,
    )


def measured_lengths(question: Question, source: Source) -> pd.DataFrame:
    """Return the lengths of the LLM's points in sources of one workload."""
    points = source.characterization.points
    is_asked_llm = points["llm_id"] == question.llm_name
    has_one_workload = ~points["source"].isin(source.fixed)
    return points.loc[is_asked_llm & has_one_workload, LENGTHS].dropna()


def longest_request_tokens(question: Question, source: Source) -> int:
    """Return the tokens of the longest request that a server has to hold."""
    if question.max_model_len is not None:
        return question.max_model_len
    if question.requests is not None:
        return round(sum(length.high for length in question.requests))
    measured = measured_lengths(question, source)
    # Requests of other sources may be longer than those of the LLM's own.
    if source.characterization.has_fixed_lengths and len(measured):
        return int(measured.sum(axis=1).max().round())
    return source.longest_request_tokens


def uneven_layouts(
    question: Question, llm: LLM, gpu_profiles: Mapping[str, GPUProfile]
) -> dict[str, str]:
    """Return the profiles whose number of GPUs the asked layout does not divide, and why.

    Raises:
        InputError: the layout is not one of a mixture of experts, or divides none of them.
    """
    copies = question.data_parallel or 1
    parts = question.expert_parallel or 1
    problem = None
    fix = "leave both out"
    if max(copies, parts) > 1 and not llm.n_experts:
        problem = f"{question.llm_name} has no experts: copies of it are replicas"
    elif copies > 1 and question.expert_parallel == 1:
        problem = "GPUs with copies of attention share experts out"
        fix = "leave the latter out"

    uneven = {
        profile_id: f"its GPUs ({gpu_profile.n_gpus}) cannot be shared out in {n:g} parts"
        for profile_id, gpu_profile in gpu_profiles.items()
        for n in (copies, parts)
        if n < math.inf and gpu_profile.n_gpus % n
    }
    if problem is None and len(uneven) == len(gpu_profiles):
        first = next(iter(uneven))
        problem = f"{first}: {uneven[first]}"
        fix = "give all"
    if problem:
        field = ", ".join(f"--{name.replace('_', '-')}" for name in PARALLEL)
        raise InputError(problem, field=field, fix=fix)
    return uneven
