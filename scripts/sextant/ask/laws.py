"""The law of an engine step on each candidate, for simulations of one LLM."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.ask.case import Case, read_case
from sextant.ask.caveats import outside_warning
from sextant.ask.forecast import fit_medians
from sextant.ask.question import Question
from sextant.decide.profile_sizing import is_as_good, might
from sextant.decide.sizing import ruled_out
from sextant.facts.engine import DEFAULT_ENGINE, scheduler_sheet
from sextant.facts.gpu import GPUProfile
from sextant.law.means import MeanLoad
from sextant.law.roofline import Roofline
from sextant.points.frame import KEYS, LENGTHS, TARGETS
from sextant.simulate.simulation import Scheduler, StepLaw

_UNMEASURED = "it was not measured there, and the law of a step on GPUs says nothing of cores"
DRAFTED_ITL = "With speculation several tokens come at once: ITL is the time per token, as TPOT."
_BATCH = 32
"""Requests that share a step where laws are compared."""


@dataclass(frozen=True)
class Settings:
    """Settings of the scheduler, under vLLM's names, and how long a client waits."""

    max_num_seqs: int | None = None
    """The engine's default if None."""
    max_num_batched_tokens: int | None = None
    """The engine's default if None."""
    timeout_s: float = float("inf")
    has_prefix_caching: bool = True

    def scheduler(
        self,
        kv_tokens: int,
        longest_tokens: int,
        engine: str = DEFAULT_ENGINE,
        engine_version: str | None = None,
        copies: float = 1,
    ) -> Scheduler:
        """Return the scheduler of a replica. Raises InputError as `Scheduler` does.

        Args:
            kv_tokens: size of the KV cache, of all copies of attention together.
            longest_tokens: tokens of the longest request.
            engine: its defaults hold where a setting is None.
            engine_version: None for the newest.
            copies: of attention; each takes its own sequences.
        """
        sheet = scheduler_sheet(engine, engine_version or "")
        sequences = sheet.max_num_seqs if self.max_num_seqs is None else self.max_num_seqs
        tokens = self.max_num_batched_tokens
        scheduler = Scheduler(
            kv_tokens,
            int(copies) * sequences,
            sheet.max_num_batched_tokens if tokens is None else tokens,
            has_prefix_caching=self.has_prefix_caching,
            is_asynchronous=sheet.is_asynchronous,
            reserved_share=sheet.reserved_share,
            prompts_first=sheet.prompts_first,
            timeout_s=self.timeout_s,
        )
        return replace(scheduler, max_model_len=min(longest_tokens, scheduler.longest))


class DrawnLaws(Sequence[StepLaw]):
    """The likeliest law, then draws; the draws are fitted when the first one is asked for."""

    def __init__(self, likeliest: StepLaw, n: int, draw: Callable[[], Sequence[StepLaw]]) -> None:
        """Take the likeliest law, and what returns it with `n` draws."""
        self._likeliest = likeliest
        self._n_draws = n
        self._draw = draw

    def __len__(self) -> int:
        return 1 + self._n_draws

    def __getitem__(self, index: Any) -> Any:
        return self._likeliest if index == 0 else self._all[index]

    @cached_property
    def _all(self) -> Sequence[StepLaw]:
        return self._draw()


class ServerLaws(NamedTuple):
    """How a replica on one GPU profile works: the likeliest law first, then draws."""

    laws: Sequence[StepLaw]
    schedulers: Sequence[Scheduler]


@dataclass(frozen=True)
class CaseLaws:
    """How replicas of the LLM of a case work on each candidate."""

    case: Case
    model: Roofline
    """What the laws come from."""
    servers: Mapping[str, ServerLaws]
    """By GPU profile, where one can serve the LLM and a law is known."""
    excluded: Mapping[str, str]
    """Why the other GPU profiles have no law."""
    longest_tokens: int
    """Requests with more tokens, input and output, are refused."""
    warnings: list[str]


def find_laws(
    question: Question, settings: Settings, n_draws: int, *, need_prices: bool = True
) -> CaseLaws:
    """Fit the measurements that a question names, and return the laws of a step that follow.

    The question has the lengths of the requests; its limits play no part.

    Raises:
        InputError: an option is wrong, no profile can serve the LLM, or the measurements have no
            law of a step.
    """
    case = read_case(question, need_prices=need_prices)
    warnings = [
        *outside_warning(case.outside_clauses(), case.source),
        *case.notes,
        *case.naming_notes(),
        *([DRAFTED_ITL] if case.question.speculative else []),
    ]
    model = fit_medians(case)
    servers, unknown = server_laws(case, settings, n_draws, model)
    excluded = {**case.excluded, **unknown}
    return CaseLaws(case, model, servers, excluded, case.longest_served_tokens, warnings)


def server_laws(
    case: Case,
    settings: Settings,
    n_draws: int,
    model: Roofline,
    *,
    are_few_drawn: bool = False,
) -> tuple[dict[str, ServerLaws], dict[str, str]]:
    """Return the laws of a step on each candidate, and why the other candidates have none.

    Args:
        case: the LLM, and how it is served.
        settings: of the scheduler.
        n_draws: draws beside the likeliest law.
        model: what `fit_medians` returns.
        are_few_drawn: whether most candidates are judged by their likeliest law alone. The draws
            of each one are then fitted when they are needed, else all at once.

    Raises:
        InputError: the predictor, or the measured engines, have no law of a step.
    """
    # The law of a step is that of GPUs: cores have their own points alone.
    on_cpu = [name for name in case.candidates if case.gpu_profiles[name].gpu.kind == "cpu"]
    on_gpu = [name for name in case.candidates if name not in on_cpu]
    servers = {}
    unknown = {}
    for profile_id in on_cpu:
        laws = _laws_of_points(case, profile_id, settings, n_draws)
        if laws is None:
            unknown[profile_id] = _UNMEASURED
        else:
            servers[profile_id] = laws
    if not on_gpu:
        return servers, unknown

    mean_tokens = sum(case.mean_lengths.values())
    schedulers = {
        profile_id: settings.scheduler(
            case.memory(profile_id).kv_tokens(mean_tokens),
            case.longest_served_tokens,
            case.engine,
            case.serving.engine_version,
            case.serving.copies(case.gpu_profiles[profile_id]),
        )
        for profile_id in on_gpu
    }
    drawing = _GPULaws(case, model, schedulers)
    n_at_once = 0 if are_few_drawn else n_draws
    for profile_id, laws_at_once in drawing.draw(on_gpu, n_at_once, not are_few_drawn).items():
        step_laws_of: Sequence[StepLaw] = laws_at_once
        if are_few_drawn:
            when_needed = partial(drawing.draw_alone, profile_id, n_draws)
            step_laws_of = DrawnLaws(laws_at_once[0], n_draws, when_needed)
        same_schedulers = [schedulers[profile_id]] * (1 + n_draws)
        servers[profile_id] = ServerLaws(step_laws_of, same_schedulers)
    return servers, unknown


class _GPULaws(NamedTuple):
    """Draws the laws of a step of a case on GPUs."""

    case: Case
    model: Roofline
    schedulers: Mapping[str, Scheduler]

    def draw(
        self, profile_ids: Sequence[str], n_draws: int, with_lesser: bool
    ) -> dict[str, list[StepLaw]]:
        """Return the likeliest law and draws of it on each of these GPU profiles.

        With `with_lesser`, measured GPU profiles that are no better than one of these are drawn
        beside them: a draw on a device says something of better devices, candidates or not.
        """
        case = self.case
        seed = case.question.seed
        lesser: dict[str, GPUProfile] = {}
        if with_lesser and n_draws:
            source = case.source
            lesser = {
                name: measured
                for name, measured in source.characterization.profiles.items()
                if name not in case.gpu_profiles
                and any(is_as_good(case.gpu_profiles[better], measured) for better in profile_ids)
            }
            longest = source.longest_request_tokens
            for name in ruled_out(case.llm, lesser, longest, source.memory_utilization):
                del lesser[name]

        gpu_profiles = {**lesser, **case.gpu_profiles}
        drawn_ids = [*profile_ids, *lesser]

        keys = pd.DataFrame([(case.llm_id, name, 1) for name in drawn_ids], columns=KEYS)
        # The cache saves prompt tokens of a simulation; the law is that of the tokens computed.
        uncached = case.varied({"prefix_hit_rate": 0.0})
        rows = uncached.asked_rows(self.model, keys, gpu_profiles)
        drawn = dict(zip(drawn_ids, self.model.step_laws(rows, n_draws, seed), strict=True))
        coupled = _coupled(drawn, gpu_profiles, case.lengths[0])
        return {
            name: [*map(StepLaw.of, self._calibrated(name, coupled[name], seed))]
            for name in profile_ids
        }

    def draw_alone(self, profile_id: str, n_draws: int) -> list[StepLaw]:
        """Return the likeliest law and draws of it on one GPU profile."""
        return self.draw([profile_id], n_draws, with_lesser=False)[profile_id]

    def _calibrated(self, profile_id: str, laws: np.ndarray, seed: int) -> np.ndarray:
        """Return laws, (1 + draws, terms), that also give what the probe measured there."""
        probe = self.case.probe
        if probe is None:
            return laws
        is_here = (probe["gpu_profile_id"] == profile_id) & probe[TARGETS].notna().any(axis=1)
        probe = probe[is_here]
        if probe.empty:
            return laws
        # Few questions have a probe.
        from sextant.law.measured_server import ProbeResult, fit_laws_to_probe

        inputs, outputs, users = (probe[name].to_numpy(float) for name in (*LENGTHS, "users"))
        load = MeanLoad(inputs, outputs.clip(min=2))
        result = ProbeResult(load, probe["nttft_ms"] * inputs, probe["itl_ms"], users)
        return fit_laws_to_probe(laws, self.schedulers[profile_id], result, seed)


def _coupled(
    laws: Mapping[str, np.ndarray], gpu_profiles: Mapping[str, GPUProfile], lengths: np.ndarray
) -> dict[str, np.ndarray]:
    """Return laws, (1 + draws, terms) of each GPU profile, ordered as the devices are.

    In no draw is a device slower, in proportion to its likeliest law, than a lesser device is. The
    law of a draw stays whole: it keeps its own ratio to the likeliest law, or takes the ratio of
    the lesser device, whichever takes less time for requests of these mean lengths in a batch.
    """
    inputs, outputs = lengths

    def request_ms(values: np.ndarray) -> Any:
        law = StepLaw(*values.T)
        prompt_ms = law.prefill_token_ms * inputs + law.prefill_pair_ms * inputs**2 / 2
        context = _BATCH * (inputs + outputs / 2)
        return prompt_ms + outputs / _BATCH * law.step_ms(0, _BATCH, context, 0)

    ratios: dict[str, np.ndarray] = {}
    for name in sorted(laws, key=lambda name: float(np.prod(might(gpu_profiles[name])))):
        likeliest = laws[name][:1]
        ratio = np.divide(laws[name], likeliest, out=np.ones_like(laws[name]), where=likeliest > 0)
        for other, other_ratio in ratios.items():
            if is_as_good(gpu_profiles[name], gpu_profiles[other]):
                is_less = request_ms(likeliest * other_ratio) < request_ms(likeliest * ratio)
                ratio = np.where(is_less[:, None], other_ratio, ratio)
        ratios[name] = ratio
    return {name: laws[name][:1] * ratio for name, ratio in ratios.items()}


def _laws_of_points(
    case: Case, profile_id: str, settings: Settings, n_draws: int
) -> ServerLaws | None:
    """Return the laws that give what was measured of the LLM there; None if nothing was."""
    from sextant.law.measured_server import calibrate, requests_of_points

    characterization = case.source.characterization
    points, tried = (
        table[(table["llm_id"] == case.llm_id) & (table["gpu_profile_id"] == profile_id)]
        for table in (characterization.points, characterization.feasibility)
    )
    batch_weights = tried["batch_weight_tokens"].dropna()
    if points.empty or batch_weights.empty:
        return None
    scheduler = settings.scheduler(int(batch_weights.max()), case.longest_served_tokens)
    calibrated = calibrate(requests_of_points(points), scheduler, n_draws, case.question.seed)
    laws = [calibrated.law, *map(StepLaw.of, calibrated.draws)]
    return ServerLaws(laws, [scheduler] * len(laws))
