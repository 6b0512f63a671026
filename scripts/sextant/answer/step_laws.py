"""The law of an engine step for one LLM on each GPU profile on offer, and its scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.answer.basis import as_measured, estimates, named_otherwise, outside_basis, warning
from sextant.answer.candidates import Subject, offered, subject_of
from sextant.answer.predicted import energy, fit_to, forecast, learned
from sextant.answer.question import Question, answers_from_points, check, make_predictor, named_llm
from sextant.answer.source import Source, find_source
from sextant.answer.text import energy_line
from sextant.base.errors import InputError
from sextant.base.rows import frame_rows
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.facts.slo import SLO
from sextant.points.frame import KEYS, LENGTHS, TARGETS, at_percentile
from sextant.predict.roofline import Roofline
from sextant.simulate.calibrated import calibrate, requests_of_points
from sextant.simulate.closed_form import Load
from sextant.simulate.fitted import step_laws, told_by_probe
from sextant.simulate.inputs import Scheduler, StepLaw

MEDIANS = SLO("medians", ttft_ms=1.0, itl_ms=1.0, percentile=50, users=1)
"""What a law is fitted to, whatever limits are asked about."""
_LEAST_BLOCKS = 64
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
        least = _LEAST_BLOCKS * Scheduler.block_tokens
        made = Scheduler(
            max(kv_tokens, least),
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
class Offer:
    """An LLM, and what is known of it on each GPU profile on offer."""

    llm_id: str
    llm: LLM
    source: Source
    profiles: Mapping[str, GPUProfile]
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
        known = self.source.known
        measured = {
            known.profiles[name].gpu.gpu_id for name in known.points["gpu_profile_id"].unique()
        }
        return self.profiles[profile_id].gpu.gpu_id in measured


def find_laws(
    question: Question, settings: Settings, n_draws: int, *, need_prices: bool = True
) -> Offer:
    """Fit the measurements that a question names, and return the laws of a step that follow.

    The question has the lengths of the requests; its limits play no part.

    Raises:
        InputError: an option is wrong, no profile can serve the LLM, or the measurements are of
            engines that stop to prefill.
    """
    check(question)
    source = find_source(question)
    question, said = as_measured(question, source.known)
    llm_id, llm = named_llm(question, source.known)
    profiles = offered(
        source.known.profiles, question.gpu_profile_ids, question.prices, need_prices=need_prices
    )
    every = {**source.known.profiles, **profiles}
    model = make_predictor(replace(question, slo=MEDIANS), every)
    if not isinstance(model, Roofline):
        problem, fix = f"{question.predictor} has no law of a step", "use --predictor roofline"
        raise InputError(problem, field="--predictor", fix=fix)
    subject = subject_of(question, llm_id, llm, source, profiles)
    longest = min(question.max_model_len or llm.context_tokens, llm.context_tokens)
    # The cache saves prompt tokens of a simulation; the law is that of the tokens computed.
    bare = replace(subject, serving=subject.serving._replace(prefix_hit_rate=0.0))
    lengths = dict(zip(LENGTHS, subject.lengths[0], strict=True))
    clauses = outside_basis(question, source, llm, lengths, profiles)
    on_cpu = [name for name in subject.candidates if profiles[name].gpu.kind == "cpu"]
    probe = subject.probe(question.probe)
    tell = partial(_Telling, subject, settings, longest, n_draws, question.seed, probe)
    laws = {name: found for name in on_cpu if (found := tell(name).by_its_points())}
    if len(on_cpu) < len(subject.candidates):
        fit_to(model, subject, MEDIANS, probe)
    laws |= {
        name: tell(name).by_fit(model, bare) for name in subject.candidates if name not in on_cpu
    }
    unknown = {name: _UNMEASURED for name in on_cpu if name not in laws}
    return Offer(
        llm_id,
        llm,
        source,
        profiles,
        laws,
        {**subject.excluded, **unknown},
        longest,
        subject.serving.facts(),
        [*warning(clauses, source), *said, *named_otherwise(question, llm_id, llm)],
    )


class _Telling(NamedTuple):
    """What the laws on one GPU profile are found for."""

    subject: Subject
    settings: Settings
    longest_tokens: int
    n_draws: int
    seed: int
    probe: pd.DataFrame | None
    profile_id: str

    def by_fit(self, model: Roofline, subject: Subject) -> ServerLaws:
        """Return the laws that follow from a fitted model, for a subject without prefix cache."""
        keys = pd.DataFrame([(subject.llm_id, self.profile_id, 1)], columns=KEYS)
        asked = subject.asked(model, keys, subject.profiles)
        found = step_laws(model, asked, self.n_draws, self.seed)
        sizes = [found.kv_tokens, *found.draws_kv_tokens.tolist()]
        schedulers = [self.settings.scheduler(int(size), self.longest_tokens) for size in sizes]
        laws = np.vstack([found.law.array(), found.draws])
        return ServerLaws([*map(StepLaw.of, self.told(laws, schedulers[0]))], schedulers)

    def told(self, laws: np.ndarray, scheduler: Scheduler) -> np.ndarray:
        """Return laws that also give what was measured of the LLM on this profile."""
        if self.probe is None:
            return laws
        rows = self.probe[self.probe["gpu_profile_id"] == self.profile_id]
        rows = rows[rows[TARGETS].notna().any(axis=1)]
        if rows.empty:
            return laws
        inputs, outputs, users = (rows[name].to_numpy(float) for name in (*LENGTHS, "users"))
        known = {"ttft_ms": rows["nttft_ms"] * inputs, "itl_ms": rows["itl_ms"]}
        load = Load(inputs, outputs.clip(min=2))
        return told_by_probe(laws, scheduler, load, users=users, seed=self.seed, **known)

    def by_its_points(self) -> ServerLaws | None:
        """Return the laws that give what was measured of the LLM there; None if nothing was.

        The law of chunked prefill knows GPUs only, so cores are told by their own points.
        """
        known, place = self.subject.source.known, (self.subject.llm_id, self.profile_id)
        points, tried = (
            frame[(frame["llm_id"] == place[0]) & (frame["gpu_profile_id"] == place[1])]
            for frame in (known.points, known.feasibility)
        )
        weights = tried["batch_weight_tokens"].dropna()
        if points.empty or weights.empty:
            return None
        scheduler = self.settings.scheduler(int(weights.max()), self.longest_tokens)
        found = calibrate(requests_of_points(points), scheduler, self.n_draws, self.seed)
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


def explain_llm(question: Question, gpu_profile_id: str, users: int) -> dict[str, Any]:
    """Return what makes up ITL and nTTFT of an LLM on a GPU profile at a load of a replica.

    Returns:
        `llm_id, gpu_profile_id, users_per_replica, percentile`, `itl` and `nttft`, each a list of
        terms `name, meaning, ms, share`, the predicted `itl_ms, nttft_ms` and their factors (what
        the percentile and the learned correction multiply the law with), `itl_batch`,
        `capacity_requests`, `energy` of an output token where the source has any, `measured`
        latencies if there are any, and `text`.

    Raises:
        InputError: an option is wrong, or the LLM does not fit.
    """
    check(question)
    source = find_source(question)
    known = source.known
    question, said = as_measured(question, known)
    llm_id, llm = named_llm(question, known)
    profiles = offered(
        known.profiles,
        (gpu_profile_id,),
        question.prices,
        need_prices=False,
        field="--gpu-profile",
    )
    every, slo = {**known.profiles, **profiles}, question.slo
    question = replace(question, gpu_profile_ids=(gpu_profile_id,))
    subject = subject_of(question, llm_id, llm, source, profiles)
    probe = subject.probe(question.probe)
    lengths = dict(zip(LENGTHS, subject.lengths[0], strict=True))
    warnings = warning(outside_basis(question, source, llm, lengths, profiles, users), source)
    model = Roofline(slo, every, question.seed)
    made = forecast(model, subject, slo, probe)
    (row,) = frame_rows(model.explain(subject.rows_at(model, [users], [gpu_profile_id])))
    facts = {
        "llm_id": llm_id,
        "gpu_profile_id": gpu_profile_id,
        "users_per_replica": users,
        "percentile": question.slo.percentile,
        "mean_input_tokens": lengths["input_tokens"],
        "warnings": [*warnings, *said, *estimates(known.points, slo)],
        "serving": subject.serving.facts(),
        "itl": _shares(row, _STEP),
        "nttft": _shares(row, _FIRST),
        **{name: row[name] for name in (*_TOTALS, "itl_batch", "capacity_requests")},
        "energy": energy(made, learned(made), gpu_profile_id, users),
        "measured": _measured(source.known.points, llm_id, gpu_profile_id, users, slo)
        if answers_from_points(question, llm_id, known)
        else None,
    }
    return facts | {"text": _as_text(facts)}


def _shares(row: dict[str, float], terms: dict[str, str]) -> list[dict[str, Any]]:
    known = {name: meaning for name, meaning in terms.items() if name in row}
    total = sum(row[name] for name in known)
    return [
        {"name": name, "meaning": meaning, "ms": row[name], "share": row[name] / total}
        for name, meaning in known.items()
    ]


def _measured(
    points: Any, llm_id: str, profile_id: str, users: int, slo: SLO
) -> dict[str, Any] | None:
    rows = at_percentile(points, slo.percentiles, slo.first_token)
    chosen = rows.query("llm_id == @llm_id and gpu_profile_id == @profile_id and users == @users")
    return frame_rows(chosen[["nttft_ms", "itl_ms"]])[0] if len(chosen) else None


def _as_text(facts: dict[str, Any]) -> str:
    lines = [
        *facts["warnings"],
        f"{facts['llm_id']} on {facts['gpu_profile_id']}, "
        f"{facts['users_per_replica']} users a replica, p{facts['percentile']}",
        f"about {facts['itl_batch']:.1f} requests share a step; the server holds "
        f"{facts['capacity_requests']:.0f} at once",
        "",
        *_table("mean time between tokens", facts["itl"]),
        f"  × {facts['itl_factor']:.2f} for the percentile and the learned correction: "
        f"ITL {facts['itl_ms']:.3g} ms{_beside(facts, 'itl_ms')}",
        "",
        *_table("mean time to the first token", facts["nttft"]),
        f"  / {facts['mean_input_tokens']:.0f} input tokens × {facts['nttft_factor']:.2f}: "
        f"nTTFT {facts['nttft_ms']:.3g} ms{_beside(facts, 'nttft_ms')}",
    ]
    return "\n".join(lines + ([energy_line(facts["energy"])] if facts["energy"] else []))


def _table(title: str, terms: list[dict[str, Any]]) -> list[str]:
    rows = [*((term["meaning"], term["ms"], term["share"]) for term in terms)]
    rows.append((title, sum(term["ms"] for term in terms), 1.0))
    width = max(len(name) for name, *_ in rows)
    return [f"  {name:<{width}}  {ms:>9.2f} ms  {share:>4.0%}" for name, ms, share in rows]


def _beside(facts: dict[str, Any], name: str) -> str:
    return f" (measured: {facts['measured'][name]:.3g} ms)" if facts["measured"] else ""
