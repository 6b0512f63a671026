"""The law of an engine step for one LLM on each GPU profile on offer, and its scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas as pd

from sextant.advice.basis import outside_basis, warning
from sextant.advice.offer import offered
from sextant.advice.predicted import fit_to
from sextant.advice.question import Question, check, make_predictor, named_llm
from sextant.advice.serving import as_measured
from sextant.advice.source import Source, find_source
from sextant.advice.subject import Subject, subject_of
from sextant.base.errors import InputError
from sextant.characterizations.points import LENGTHS
from sextant.experiment.slo import SLO
from sextant.hardware.gpu import GPUProfile
from sextant.llm import LLM
from sextant.predict.folds import KEYS
from sextant.predict.roofline import Roofline
from sextant.simulate.fitted import step_laws
from sextant.simulate.scheduler import Scheduler
from sextant.simulate.step_law import StepLaw

MEDIANS = SLO("medians", ttft_ms=1.0, itl_ms=1.0, percentile=50, users=1)
"""What a law is fitted to, whatever limits are asked about."""
_LEAST_BLOCKS = 64


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
    fit_to(model, subject, MEDIANS, subject.probe(question.probe))
    longest = min(question.max_model_len or llm.context_tokens, llm.context_tokens)
    # The cache saves prompt tokens of a simulation; the law is that of the tokens computed.
    bare = replace(subject, serving=subject.serving._replace(prefix_hit_rate=0.0))
    lengths = dict(zip(LENGTHS, subject.lengths[0], strict=True))
    clauses = outside_basis(question, source, llm, lengths, profiles)
    return Offer(
        llm_id,
        llm,
        source,
        profiles,
        {
            name: _laws_on(model, bare, name, settings, longest, n_draws, question.seed)
            for name in subject.candidates
        },
        subject.excluded,
        longest,
        subject.serving.facts(),
        [*warning(clauses, source), *said],
    )


def _laws_on(
    model: Roofline,
    subject: Subject,
    profile_id: str,
    settings: Settings,
    longest_tokens: int,
    n_draws: int,
    seed: int,
) -> ServerLaws:
    keys = pd.DataFrame([(subject.llm_id, profile_id, 1)], columns=KEYS)
    found = step_laws(model, subject.asked(model, keys, subject.profiles), n_draws, seed)
    laws = [found.law, *map(StepLaw.of, found.draws)]
    sizes = [found.kv_tokens, *found.draws_kv_tokens.tolist()]
    return ServerLaws(laws, [settings.scheduler(int(size), longest_tokens) for size in sizes])
