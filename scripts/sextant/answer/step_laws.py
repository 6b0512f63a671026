"""The law of an engine step: for simulations of one LLM on each candidate, and in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.answer.basis import estimates, named_otherwise, outside_basis, warning
from sextant.answer.candidates import Subject, read_question, subject_of
from sextant.answer.predicted import energy, fit_to, forecast, learned
from sextant.answer.question import Question, answers_from_points, make_predictor
from sextant.answer.source import Source
from sextant.answer.text import energy_line
from sextant.base.errors import InputError
from sextant.base.files import Row, frame_rows
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM, memory_of
from sextant.facts.slo import SLO
from sextant.pages.blocks import Block, Document, Headline, Note, Table
from sextant.points.frame import KEYS, LENGTHS, TARGETS, at_percentile
from sextant.predict.roofline import Roofline
from sextant.simulate.closed_form import Load
from sextant.simulate.fitted import step_laws, told_by_probe
from sextant.simulate.inputs import Scheduler, StepLaw

MEDIANS = SLO("medians", ttft_ms=1.0, itl_ms=1.0, percentile=50, users=1)
"""What a law is fitted to, whatever limits are asked about."""
_UNMEASURED = "it was not measured there, and the law of a step on GPUs says nothing of cores"


@dataclass(frozen=True)
class Settings:
    """Settings of vLLM's scheduler, under vLLM's own names, and how long a client waits."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    timeout_s: float = float("inf")
    has_prefix_caching: bool = True

    def scheduler(self, kv_tokens: int, longest_tokens: int) -> Scheduler:
        """Return the scheduler over a KV cache of this size. Raises InputError as it does."""
        made = Scheduler(
            kv_tokens,
            self.max_num_seqs,
            self.max_num_batched_tokens,
            has_prefix_caching=self.has_prefix_caching,
            timeout_s=self.timeout_s,
        )
        return replace(made, max_model_len=min(longest_tokens, made.most_tokens))


class ServerLaws(NamedTuple):
    """How a replica on one GPU profile works: the most likely first, then draws."""

    laws: list[StepLaw]
    schedulers: list[Scheduler]


@dataclass(frozen=True)
class LLMLaws:
    """An LLM, and how its replicas work on each candidate."""

    llm_id: str
    llm: LLM
    source: Source
    profiles: Mapping[str, GPUProfile]
    """The candidates."""
    laws: Mapping[str, ServerLaws]
    """Of the profiles that can serve it."""
    excluded: Mapping[str, str]
    """Why the others cannot."""
    longest_tokens: int
    """Requests with more tokens, input and output, are refused."""
    facts: dict[str, Any]
    """The requests and servers that are asked about."""
    warnings: list[str]

    def is_measured(self, profile_id: str) -> bool:
        """Return whether the source has points of this type of GPU."""
        return self.profiles[profile_id].gpu.gpu_id in self.source.gpu_ids


def find_laws(
    question: Question, settings: Settings, n_draws: int, *, need_prices: bool = True
) -> LLMLaws:
    """Fit the measurements that a question names, and return the laws of a step that follow.

    The question has the lengths of the requests; its limits play no part.

    Raises:
        InputError: an option is wrong, no profile can serve the LLM, or the measurements are of
            engines that stop to prefill.
    """
    asked = read_question(question, need_prices=need_prices)
    question, llm_id, llm, source, profiles, notes = asked
    subject = subject_of(question, llm_id, llm, source, profiles)
    clauses = outside_basis(question, source, llm, subject.mean_lengths, profiles)
    laws, unknown = server_laws(question, subject, settings, n_draws)
    return LLMLaws(
        llm_id,
        llm,
        source,
        profiles,
        laws,
        {**subject.excluded, **unknown},
        _longest(question, llm),
        subject.serving.facts(),
        [*warning(clauses, source), *notes, *named_otherwise(question, llm_id, llm)],
    )


def _longest(question: Question, llm: LLM) -> int:
    return min(question.max_model_len or llm.context_tokens, llm.context_tokens)


def server_laws(
    question: Question, subject: Subject, settings: Settings, n_draws: int
) -> tuple[dict[str, ServerLaws], dict[str, str]]:
    """Return the laws of a step on each candidate, and why others have none.

    Raises:
        InputError: the predictor, or the engines that were measured, have no law of a step.
    """
    source, profiles, llm_id = subject.source, subject.profiles, subject.llm_id
    every = {**source.known.profiles, **profiles}
    model = make_predictor(replace(question, slo=MEDIANS), every)
    if not isinstance(model, Roofline):
        problem, fix = f"{question.predictor} has no law of a step", "use --predictor roofline"
        raise InputError(problem, field="--predictor", fix=fix)
    longest = _longest(question, subject.llm)
    probe = subject.probe(question.probe)
    # The law of chunked prefill is that of GPUs: cores have their own points alone.
    on_cpu = [name for name in subject.candidates if profiles[name].gpu.kind == "cpu"]
    on_gpu = [name for name in subject.candidates if name not in on_cpu]
    calibrated = {
        name: _calibrate_to_points(subject, name, settings, longest, n_draws, question.seed)
        for name in on_cpu
    }
    laws = {name: each for name, each in calibrated.items() if each is not None}
    unknown = {name: _UNMEASURED for name in on_cpu if name not in laws}
    if not on_gpu:
        return laws, unknown
    fit_to(model, subject, MEDIANS, probe)
    # The cache saves prompt tokens of a simulation; the law is that of the tokens computed.
    bare = replace(subject, serving=subject.serving._replace(prefix_hit_rate=0.0))
    keys = pd.DataFrame([(llm_id, name, 1) for name in on_gpu], columns=KEYS)
    found = step_laws(model, bare.asked(model, keys, profiles), n_draws, question.seed)
    for name, fitted in zip(on_gpu, found, strict=True):
        memory = memory_of(subject.llm, profiles[name].devices, source.memory_utilization, "vllm")
        length = sum(subject.mean_lengths.values())
        scheduler = settings.scheduler(memory.kv_tokens(length), longest)
        of_steps = np.vstack([fitted.law.array(), fitted.draws])
        if probe is not None:
            own = probe[(probe["gpu_profile_id"] == name) & probe[TARGETS].notna().any(axis=1)]
            of_steps = _calibrate_to_probe(of_steps, own, scheduler, question.seed)
        laws[name] = ServerLaws([*map(StepLaw.of, of_steps)], [scheduler] * len(of_steps))
    return laws, unknown


def _calibrate_to_probe(
    laws: np.ndarray, probe: pd.DataFrame, scheduler: Scheduler, seed: int
) -> np.ndarray:
    """Return laws that also give what a probe measured on their GPU profile."""
    if probe.empty:
        return laws
    inputs, outputs, users = (probe[name].to_numpy(float) for name in (*LENGTHS, "users"))
    known = {"ttft_ms": probe["nttft_ms"] * inputs, "itl_ms": probe["itl_ms"]}
    load = Load(inputs, outputs.clip(min=2))
    return told_by_probe(laws, scheduler, load, users=users, seed=seed, **known)


def _calibrate_to_points(
    subject: Subject, profile_id: str, settings: Settings, longest: int, n_draws: int, seed: int
) -> ServerLaws | None:
    """Return the laws that give what was measured of the LLM there; None if nothing was."""
    from sextant.simulate.calibrated import calibrate, requests_of_points

    known = subject.source.known
    points, tried = (
        frame[(frame["llm_id"] == subject.llm_id) & (frame["gpu_profile_id"] == profile_id)]
        for frame in (known.points, known.feasibility)
    )
    weights = tried["batch_weight_tokens"].dropna()
    if points.empty or weights.empty:
        return None
    scheduler = settings.scheduler(int(weights.max()), longest)
    found = calibrate(requests_of_points(points), scheduler, n_draws, seed)
    laws = [found.law, *map(StepLaw.of, found.draws)]
    return ServerLaws(laws, [scheduler] * len(laws))


_STEP = {
    "launch_ms": "launch of the layers' kernels",
    "weights_ms": "reading the weights",
    "kv_ms": "moving the KV cache",
    "sequences_ms": "work for each further sequence",
    "other_prompts_ms": "prefill of others' prompts",
    "overlap_ms": "launches and memory traffic at the same time",
}
_FIRST = {
    "prefill_ms": "prefill of the own input",
    "batching_ms": "waiting until the batch lets it in",
    "queueing_ms": "queueing behind other requests",
}
_TOTALS = ("itl_ms", "itl_factor", "nttft_ms", "nttft_factor")


def explain_llm(question: Question, gpu_profile_id: str, users: int) -> Document:
    """Return what makes up ITL and nTTFT of an LLM on a GPU profile at a load of a replica.

    Returns:
        Its data: `llm_id, gpu_profile_id, users_per_replica, percentile`, `itl` and `nttft`, each
        a list of terms `name, meaning, ms, share`, the predicted `itl_ms, nttft_ms` and their
        factors (what the percentile and the learned correction multiply the law with),
        `itl_batch`, `capacity_requests`, `energy` of an output token where the source has any, and
        `measured` latencies if there are any.

    Raises:
        InputError: an option is wrong, or the LLM does not fit.
    """
    question = replace(question, gpu_profile_ids=(gpu_profile_id,))
    asked = read_question(question, need_prices=False, field="--gpu-profile")
    question, llm_id, llm, source, profiles, notes = asked
    known, slo = source.known, question.slo
    subject = subject_of(question, llm_id, llm, source, profiles)
    clauses = outside_basis(question, source, llm, subject.mean_lengths, profiles, users)
    model = Roofline(slo, {**known.profiles, **profiles}, question.seed)
    made = forecast(model, subject, slo, subject.probe(question.probe))
    (row,) = frame_rows(model.explain(subject.rows_at(model, [users], [gpu_profile_id])))
    measured = None
    if answers_from_points(question, llm_id, known):
        points = at_percentile(known.points, slo.percentiles, slo.first_token)
        is_it = (points[KEYS] == [llm_id, gpu_profile_id, users]).all(axis=1)
        measured = next(iter(frame_rows(points.loc[is_it, TARGETS])), None)
    facts = {
        "llm_id": llm_id,
        "gpu_profile_id": gpu_profile_id,
        "users_per_replica": users,
        "percentile": slo.percentile,
        "mean_input_tokens": subject.mean_lengths["input_tokens"],
        "warnings": [*warning(clauses, source), *notes, *estimates(known.points, slo)],
        "serving": subject.serving.facts(),
        "itl": _shares(row, _STEP),
        "nttft": _shares(row, _FIRST),
        **{name: row[name] for name in (*_TOTALS, "itl_batch", "capacity_requests")},
        "energy": energy(made, learned(made), gpu_profile_id, users),
        "measured": measured,
    }
    return _explanation(facts)


def _shares(row: Row, terms: Mapping[str, str]) -> list[Row]:
    known = {name: meaning for name, meaning in terms.items() if name in row}
    total = sum(row[name] for name in known)
    return [
        {"name": name, "meaning": meaning, "ms": row[name], "share": row[name] / total}
        for name, meaning in known.items()
    ]


def _explanation(facts: Row) -> Document:
    def table(title: str, terms: Sequence[Row], name: str, total: str) -> Table:
        rows = [*((term["meaning"], term["ms"], term["share"]) for term in terms)]
        rows.append((title, sum(term["ms"] for term in terms), 1.0))
        cells = [(meaning, f"{ms:.2f} ms", f"{share:.0%}") for meaning, ms, share in rows]
        was = f" (measured: {facts['measured'][name]:.3g} ms)" if facts["measured"] else ""
        return Table(("Term", "Time", "Share"), cells, note=f"{total} {facts[name]:.3g} ms{was}")

    place = f"{facts['llm_id']} on {facts['gpu_profile_id']}"
    blocks: list[Block] = [
        Headline(f"{place}, {facts['users_per_replica']} users a replica, p{facts['percentile']}"),
        *(Note(line, "warning") for line in facts["warnings"]),
        Note(
            f"About {facts['itl_batch']:.1f} requests share a step; the server holds "
            f"{facts['capacity_requests']:.0f} at once."
        ),
        table(
            "mean time between tokens",
            facts["itl"],
            "itl_ms",
            f"× {facts['itl_factor']:.2f} for the percentile and the learned correction: ITL",
        ),
        table(
            "mean time to the first token",
            facts["nttft"],
            "nttft_ms",
            f"/ {facts['mean_input_tokens']:.0f} input tokens × {facts['nttft_factor']:.2f}: nTTFT",
        ),
    ]
    if facts["energy"]:
        blocks.append(Note(energy_line(facts["energy"])))
    return Document(f"{place}: explanation", blocks, facts)
