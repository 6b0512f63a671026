"""The law of an engine step for simulations of one LLM, and a request rate sized by them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.ask.candidates import Asked, Subject, read_question, subject_of
from sextant.ask.forecast import fit_to
from sextant.ask.question import Question, make_predictor
from sextant.ask.source import named_otherwise, outside_basis, warning
from sextant.base.errors import InputError
from sextant.base.files import Row
from sextant.decide import simulated_sizing as sizing
from sextant.decide.decision import SAFE
from sextant.decide.sizing import draws_needed, probability_of, ruled_out
from sextant.decide.windows import Target, judge_windows
from sextant.facts.engine import DEFAULT_ENGINE, scheduler_sheet
from sextant.facts.gpu import HOURS_PER_MONTH, GPUProfile, token_prices
from sextant.facts.slo import SLO, worst_limit
from sextant.law.means import MeanLoad
from sextant.law.roofline import Roofline
from sextant.law.step_laws import step_laws
from sextant.points.frame import KEYS, LENGTHS, TARGETS
from sextant.predict.draws import INTERVAL
from sextant.simulate.simulation import Scheduler, StepLaw, on_threads
from sextant.workload.lengths import Length, RequestLengths, length_sampler
from sextant.workload.requests import SteadyTraffic

MEDIANS = SLO("medians", ttft_ms=1.0, itl_ms=1.0, percentile=50, users=1)
"""What a law is fitted to, whatever limits are asked about."""
_UNMEASURED = "it was not measured there, and the law of a step on GPUs says nothing of cores"
N_DRAWS = 32
"""Of the law and the traffic, beside the likeliest law; more where the risk needs more. Of 17 days
that all meet an SLO one more in four may miss it."""
DRAFTED_ITL = "With speculation several tokens come at once: ITL is the time per token, as TPOT."
_BATCH = 32  # Requests that share a step where laws are compared.


@dataclass(frozen=True)
class Settings:
    """Settings of the scheduler, under vLLM's names, and how long a client waits."""

    max_num_seqs: int | None = None  # by default the engine's
    max_num_batched_tokens: int | None = None  # the same
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
        """Return the scheduler over a KV cache of this size, of all copies of attention together:
        each takes its own sequences. Raises InputError as it does."""
        sheet = scheduler_sheet(engine, engine_version or "")
        sequences, tokens = self.max_num_seqs, self.max_num_batched_tokens
        made = Scheduler(
            kv_tokens,
            int(copies) * (sheet.max_num_seqs if sequences is None else sequences),
            sheet.max_num_batched_tokens if tokens is None else tokens,
            has_prefix_caching=self.has_prefix_caching,
            is_asynchronous=sheet.is_asynchronous,
            reserved_share=sheet.reserved_share,
            prompts_first=sheet.prompts_first,
            timeout_s=self.timeout_s,
        )
        return replace(made, max_model_len=min(longest_tokens, made.longest))


class DrawnLaws(Sequence[StepLaw]):
    """The likeliest law, then draws; these are fitted when the first of them is asked for."""

    def __init__(self, likeliest: StepLaw, n: int, draw: Callable[[], Sequence[StepLaw]]) -> None:
        """Take the likeliest law, and what returns it with `n` draws."""
        self._likeliest, self._n_draws, self._draw = likeliest, n, draw

    def __len__(self) -> int:
        return 1 + self._n_draws

    def __getitem__(self, place: Any) -> Any:
        return self._likeliest if place == 0 else self._all[place]

    @cached_property
    def _all(self) -> Sequence[StepLaw]:
        return self._draw()


class ServerLaws(NamedTuple):
    """How a replica on one GPU profile works: the most likely first, then draws."""

    laws: Sequence[StepLaw]
    schedulers: Sequence[Scheduler]


@dataclass(frozen=True)
class LLMLaws:
    """An LLM, and how its replicas work on each candidate."""

    asked: Asked
    subject: Subject
    model: Roofline  # what the laws are from
    laws: Mapping[str, ServerLaws]  # of the profiles that can serve it
    excluded: Mapping[str, str]  # why the others cannot
    longest_tokens: int  # requests with more tokens, input and output, are refused
    warnings: list[str]

    def is_measured(self, profile_id: str) -> bool:
        """Return whether the source has points of this type of GPU."""
        return self.asked.profiles[profile_id].gpu.gpu_id in self.asked.source.gpu_ids


def find_laws(
    question: Question, settings: Settings, n_draws: int, *, need_prices: bool = True
) -> LLMLaws:
    """Fit the measurements that a question names, and return the laws of a step that follow. The
    question has the lengths of the requests; its limits play no part. Raises InputError: an option
    is wrong, no profile can serve the LLM, or the measurements are of engines that stop to prefill.
    """
    asked = read_question(question, need_prices=need_prices)
    _, question, llm_id, llm, source, profiles, notes = asked
    subject = subject_of(question, llm_id, llm, source, profiles)
    clauses = outside_basis(question, source, llm, subject.mean_lengths, profiles)
    model = fit_medians(subject)
    laws, unknown = server_laws(subject, settings, n_draws, model)
    return LLMLaws(
        asked,
        subject,
        model,
        laws,
        {**subject.excluded, **unknown},
        _longest(subject),
        [
            *warning(clauses, source),
            *notes,
            *named_otherwise(question, llm_id, llm),
            *([DRAFTED_ITL] if question.speculative else []),
        ],
    )


def _longest(subject: Subject) -> int:
    context = subject.llm.context_tokens
    return min(subject.question.max_model_len or context, context)


def server_laws(
    subject: Subject,
    settings: Settings,
    n_draws: int,
    model: Roofline,
    *,
    are_few_drawn: bool = False,
) -> tuple[dict[str, ServerLaws], dict[str, str]]:
    """Return the laws of a step on each candidate, and why others have none. Each has the likeliest
    law and `n_draws`; `model` is as `fit_medians` returns it. With `are_few_drawn` most candidates
    are judged by their likeliest law alone: each one's draws are then fitted when needed, else all
    at once. Raises InputError: the predictor, or the measured engines, have no law of a step."""
    profiles, seed, longest = subject.profiles, subject.question.seed, _longest(subject)
    probe = subject.probe
    # The law of a step is that of GPUs: cores have their own points alone.
    on_cpu = [name for name in subject.candidates if profiles[name].gpu.kind == "cpu"]
    on_gpu = [name for name in subject.candidates if name not in on_cpu]
    laws, unknown = {}, {}
    for name in on_cpu:
        if (own := _calibrate_to_points(subject, name, settings, longest, n_draws, seed)) is None:
            unknown[name] = _UNMEASURED
        else:
            laws[name] = own
    if not on_gpu:
        return laws, unknown
    # The cache saves prompt tokens of a simulation; the law is that of the tokens computed.
    bare = replace(subject, serving=subject.serving._replace(prefix_hit_rate=0.0))

    def drawn(names: tuple[str, ...], n: int) -> dict[str, list[StepLaw]]:
        # A draw of a device says something of better ones, whether it is a candidate or not.
        lesser = {} if n == 0 or are_few_drawn else _lesser(subject, [profiles[x] for x in names])
        every, known = {**lesser, **profiles}, [*names, *lesser]
        keys = pd.DataFrame([(subject.llm_id, name, 1) for name in known], columns=KEYS)
        found = step_laws(model, bare.asked(model, keys, every), n, seed)
        coupled = _coupled(dict(zip(known, found, strict=True)), every, subject.lengths[0])
        of = {}
        for name in names:
            values = coupled[name]
            if probe is not None:
                own = probe[(probe["gpu_profile_id"] == name) & probe[TARGETS].notna().any(axis=1)]
                values = _calibrate_to_probe(values, own, schedulers[name], seed)
            of[name] = [*map(StepLaw.of, values)]
        return of

    schedulers, length = {}, sum(subject.mean_lengths.values())
    for name in on_gpu:
        kv_tokens = subject.memory(name).kv_tokens(length)
        of = subject.engine, subject.serving.engine_version, subject.serving.copies(profiles[name])
        schedulers[name] = settings.scheduler(kv_tokens, longest, *of)
    for name, found in drawn(tuple(on_gpu), 0 if are_few_drawn else n_draws).items():
        of_steps: Sequence[StepLaw] = found
        if are_few_drawn:
            alone = partial(lambda own: drawn((own,), n_draws)[own], name)
            of_steps = DrawnLaws(found[0], n_draws, alone)
        laws[name] = ServerLaws(of_steps, [schedulers[name]] * (1 + n_draws))
    return laws, unknown


def _lesser(subject: Subject, profiles: Sequence[GPUProfile]) -> dict[str, GPUProfile]:
    """Return measured GPU profiles that serve the LLM and are no better than some candidate."""
    source = subject.source
    known = {
        name: each
        for name, each in source.known.profiles.items()
        if name not in subject.profiles and any(sizing.is_as_good(own, each) for own in profiles)
    }
    asked = source.longest_request_tokens, source.memory_utilization
    excluded = ruled_out(subject.llm, known, *asked)
    return {name: each for name, each in known.items() if name not in excluded}


def _coupled(
    laws: Mapping[str, np.ndarray], profiles: Mapping[str, GPUProfile], lengths: np.ndarray
) -> dict[str, np.ndarray]:
    """Return laws, (1 + draws, terms) of each GPU profile, coupled so that in no draw a device
    differs for the worse from its likeliest law where a lesser one does not. Each draw's law stays
    whole: it is its own, or differs from the likeliest as that of the lesser device does, whichever
    takes less time for a request of these mean lengths in a batch."""
    inputs, outputs = lengths

    def time_ms(values: np.ndarray) -> Any:
        law = StepLaw(*values.T)
        prompt = law.prefill_token_ms * inputs + law.prefill_pair_ms * inputs**2 / 2
        context = _BATCH * (inputs + outputs / 2)
        return prompt + outputs / _BATCH * law.step_ms(0, _BATCH, context, 0)

    ratios: dict[str, np.ndarray] = {}
    for name in sorted(laws, key=lambda name: float(np.prod(sizing.might(profiles[name])))):
        likely = laws[name][:1]
        own = np.divide(laws[name], likely, out=np.ones_like(laws[name]), where=likely > 0)
        for other, ratio in ratios.items():
            if sizing.is_as_good(profiles[name], profiles[other]):
                is_less = time_ms(likely * ratio) < time_ms(likely * own)
                own = np.where(is_less[:, None], ratio, own)
        ratios[name] = own
    return {name: laws[name][:1] * ratio for name, ratio in ratios.items()}


def fit_medians(subject: Subject) -> Roofline:
    """Return the predictor fitted to medians, whose terms are the law of a step on GPUs. Raises
    InputError: another predictor is asked for, or the points are too few."""
    question, every = subject.question, {**subject.source.known.profiles, **subject.profiles}
    model = make_predictor(replace(question, slo=MEDIANS), every)
    if not isinstance(model, Roofline):
        problem, fix = f"{question.predictor} has no law of a step", "use --predictor roofline"
        raise InputError(problem, field="--predictor", fix=fix)
    if any(subject.profiles[name].gpu.kind != "cpu" for name in subject.candidates):
        fit_to(model, subject, MEDIANS)
    return model


def _calibrate_to_probe(
    laws: np.ndarray, probe: pd.DataFrame, scheduler: Scheduler, seed: int
) -> np.ndarray:
    """Return laws that also give what a probe measured on their GPU profile."""
    if probe.empty:
        return laws
    # Few questions have a probe.
    from sextant.law.measured_server import ProbeResult, fit_laws_to_probe

    inputs, outputs, users = (probe[name].to_numpy(float) for name in (*LENGTHS, "users"))
    load = MeanLoad(inputs, outputs.clip(min=2))
    result = ProbeResult(load, probe["nttft_ms"] * inputs, probe["itl_ms"], users)
    return fit_laws_to_probe(laws, scheduler, result, seed)


def _calibrate_to_points(
    subject: Subject, profile_id: str, settings: Settings, longest: int, n_draws: int, seed: int
) -> ServerLaws | None:
    """Return the laws that give what was measured of the LLM there; None if nothing was."""
    from sextant.law.measured_server import calibrate, requests_of_points

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


@dataclass(frozen=True)
class RateSizer:
    """How the replicas of each GPU profile serve requests that arrive at random."""

    servers: Mapping[str, sizing.SimulatedReplica]
    unknown: Mapping[str, str]  # why other profiles have no law of a step
    model: Roofline  # what the laws are from
    traffic: SteadyTraffic  # at any rate
    confidence: float  # the probability to find replicas for
    most_usd_per_hour: float | None = None
    """Options that cost more are of no use, and few are likely to be of any; None: all count."""
    most_drawn: int | None = None  # of these, how many GPU profiles are worth draws; None: all
    known: dict[tuple[SLO, bool], dict[str, sizing.Sizing]] = field(default_factory=dict)
    """What was found already, by the question and whether it was answered briefly."""

    @classmethod
    def of(
        cls,
        subject: Subject,
        most_usd_per_hour: float | None = None,
        model: Roofline | None = None,
        most_drawn: int | None = None,
        wanted: float | None = None,
    ) -> "RateSizer":
        """Fit the laws of a step. Raises InputError where the points have none at all."""
        question, profiles = subject.question, subject.profiles
        wanted = wanted or (SAFE if question.risk is None else 1 - question.risk)
        n_draws, few = max(N_DRAWS, draws_needed(wanted) - 1), most_usd_per_hour is not None
        model = model or fit_medians(subject)
        laws, unknown = server_laws(subject, Settings(), n_draws, model, are_few_drawn=few)
        if not laws:
            raise InputError("no GPU profile has a law of a step")
        hit_rate = question.prefix_hit_rate
        servers = {
            name: sizing.simulated_server(profiles[name], each.schedulers, each.laws, hit_rate)
            for name, each in laws.items()
        }
        traffic = _steady_traffic(subject)
        return cls(servers, unknown, model, traffic, wanted, most_usd_per_hour, most_drawn)

    def needed(
        self,
        slo: SLO,
        profile_ids: Sequence[str],
        *,
        is_brief: bool = False,
        is_best_enough: bool = False,
    ) -> pd.DataFrame:
        """Return the replicas that each profile needs, by draw; infinite where none are enough.

        Briefly (`size_profiles`) for what the answer does not rest on, and no more than the best
        answer for what is shown of it alone.
        """
        if (slo, is_brief) not in self.known:
            few = 1 + N_DRAWS if is_brief or self.most_usd_per_hour is not None else 0
            # Else the answer is that of a question by itself.
            asked = reversed(self.known.items()) if is_brief else ()
            harder = (found for (other, _), found in asked if is_harder(other, slo))
            easier = (found for (other, _), found in self.known.items() if is_harder(slo, other))
            self.known[slo, is_brief] = sizing.size_profiles(
                self.servers,
                self.traffic_of(slo),
                target_of(slo),
                self.confidence,
                next(harder, {}),
                next(easier, {}) if is_brief else {},
                is_best_enough=is_best_enough or self.most_drawn is not None,
                brief_draws=few,
                most_drawn=self.most_drawn,
                most_usd_per_hour=self.most_usd_per_hour or np.inf,
                has_rate=False,
            )
        found = self.known[slo, is_brief]
        n_draws = max((len(each.needs) for each in found.values()), default=0) or 1 + N_DRAWS
        needs = {name: found[name].needs if name in found else () for name in profile_ids}
        never = [np.inf] * n_draws
        return pd.DataFrame({name: np.array(each or never) for name, each in needs.items()})

    def n_draws(self, slo: SLO) -> int:
        """Return how many draws decide, the likeliest law included."""
        return len(self.needed(slo, [*self.servers]))

    def latencies(self, slo: SLO, profile_id: str, replicas: int) -> dict[str, np.ndarray]:
        """Return each limit's latency in ms by draw, and how many requests are `in_flight`."""
        server, target, traffic = self.servers[profile_id], target_of(slo), self.traffic_of(slo)

        def one(draw: int) -> dict[str, float]:
            outcome = server.run(traffic.drawn(draw), replicas, draw, None)
            found = judge_windows(outcome, target, 1).latencies_ms
            in_flight = slo.load / replicas * float(np.nanmean(outcome.e2e_s))
            return {name: each[0] for name, each in found.items()} | {"in_flight": in_flight}

        rows = on_threads(one, range(self.n_draws(slo)))
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def most_rps(self, slo: SLO, profile_id: str, replicas: int) -> float:
        """Return the rate that each of so many replicas serves, by the likeliest law."""
        server, demand = self.servers[profile_id], self.traffic_of(slo).drawn(0)
        found = sizing.rate_at_slo(server, demand, target_of(slo), slo.load, replicas)
        bound = server.bound(demand)
        return min((found or 0.0) / replicas, bound.rate_rps if bound else np.inf)

    def traffic_of(self, slo: SLO) -> SteadyTraffic:
        """Return what arrives at the rate of an SLO."""
        return replace(self.traffic, rate_rps=slo.load, _streams={})

    def is_near(self, slo: SLO) -> bool:
        """Return whether further draws could change the answer (`sizing.is_near`)."""
        return sizing.is_near([*self.known[slo, False].values()], self.confidence)


def _steady_traffic(subject: Subject) -> SteadyTraffic:
    """Return what arrives, at 1/s, as in `sextant capacity`; Poisson without steady arrivals."""
    question = subject.question
    lengths = question.requests or RequestLengths(*(Length(m, m) for m in subject.lengths[0]))
    if question.workload is None:
        return SteadyTraffic("given lengths", length_sampler(lengths), 1.0, 1.0, question.seed)
    from sextant.ask.traffic import traffic_at_rate  # few questions name a workload

    made = traffic_at_rate(1.0, question.workload, None, first_seed=question.seed)
    return made.steady() or SteadyTraffic(made.name, made.requests, 1.0, 1.0, question.seed)


def is_harder(slo: SLO, other: SLO) -> bool:
    """Return whether an SLO has no less load and no looser limits than another with the same."""
    limits = [(own.limit_ms, other.limits[name].limit_ms) for name, own in slo.limits.items()]
    return slo.load >= other.load and all(own <= others for own, others in limits)


def target_of(slo: SLO) -> Target:
    """Return what replicas have to meet over the whole time."""
    return Target(slo.limits, slo.goodput, slo.allowed_failures, None)


def expect(arrivals: RateSizer, slo: SLO, chosen: Row, lengths: np.ndarray) -> tuple[Row, Row]:
    """Return the latencies of the chosen option, and headroom as `measure_headroom` has it."""
    name, replicas, usd = (chosen[n] for n in ("gpu_profile_id", "replicas", "usd_per_hour"))
    found, needs = arrivals.latencies(slo, name, replicas), arrivals.needed(slo, [name])[name]
    is_met = (needs <= replicas).to_numpy()
    users = max(round(float(np.median(found.pop("in_flight")))), 1)
    latency: Row = {"users": users}
    most, limits = arrivals.most_rps(slo, name, replicas), []
    for metric, limit in slo.limits.items():
        # Where these replicas are enough because a lesser device's are, no latency is above it.
        values = np.where(is_met, np.minimum(found[metric], limit.limit_ms), found[metric])
        low, median, high = np.quantile(values, [INTERVAL[0], 0.5, INTERVAL[1]])
        ends = {f"{metric}_ms": median, f"{metric}_lo_ms": low, f"{metric}_hi_ms": high}
        latency |= ends | {f"{metric}_ratio": median / limit.limit_ms}
        row = {"metric": metric, **limit._asdict(), "latency_ms": median, "lo_ms": low}
        row |= {"hi_ms": high, "headroom": 1 - median / limit.limit_ms}
        limits.append(row | {"load": replicas * most, "is_most_tried": False})
    each = slo.load / replicas
    latency |= {
        "binding_limit": worst_limit(latency),
        "load": each,
        "load_median": most,
        "requests_per_s": each,
        "checked_at_users": None,
    }
    left = replicas - 1
    enough = probability_of((needs <= left).sum(), len(needs))
    without = {"replicas": left, "load": left * most, "is_kept": bool(enough >= SAFE)}
    return latency, {
        "users_per_replica": users,
        "level_users": users,
        "limits": limits,
        "load": replicas * most,
        "is_most_tried": False,
        "is_open": False,
        "without_one": without | {"probability_met": enough} if left else None,
        "requests_per_s": slo.load,
        "most_requests_per_s": replicas * most,
        "usd_per_hour": usd,
        "usd_per_month": HOURS_PER_MONTH * usd,
        "usd_per_million_tokens": token_prices(usd, slo.load, lengths.tolist())[0],
    }


def rate_notes(arrivals: RateSizer, slo: SLO, is_near: bool) -> list[str]:
    """Return how the rate was sized, and whether more draws could change the answer."""
    n = arrivals.n_draws(slo)
    alpha = arrivals.traffic.alpha
    how = "Poisson" if alpha == 1 else f"Gamma gaps of shape {alpha:.3g}, those of the workload"
    text = f"Requests arrive at random ({how}), simulated over {n} draws of law and traffic"
    if is_near or arrivals.is_near(slo):
        text += (
            ": the decision is near, and a longer run could change it (`sextant capacity` with the "
            f"same options and --draws {4 * N_DRAWS})"
        )
    return [f"{text}."]
