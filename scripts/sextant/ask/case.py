"""A case: a question, and what follows from it, each found once, when it is first needed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from sextant.ask.api_prices import find_api_prices
from sextant.ask.candidates import (
    candidates_of,
    nearest_that_serves,
    price_notes,
    unmeasured_candidates,
)
from sextant.ask.caveats import (
    doubt_notes,
    failing_profiles,
    failing_servers,
    failing_servers_notes,
    failure_notes,
    length_factors,
    note_named_precision,
    note_uncounted_drafts,
    outside_of_measurements,
)
from sextant.ask.question import SPECULATION, Question, check_question
from sextant.ask.serving import (
    Serving,
    as_measured,
    config_notes,
    find_llm,
    longest_request_tokens,
    measured_lengths,
    serving_of,
    uneven_layouts,
)
from sextant.ask.source import Source, find_source
from sextant.ask.start_up import StartUp, start_up_of
from sextant.base.errors import InputError
from sextant.decide.measured_rates import RateBounds, measured_bounds
from sextant.decide.sizing import ruled_out
from sextant.facts.engine import DEFAULT_ENGINE, Memory, memory_of
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import (
    LLM,
    Speculating,
    config_file,
    kv_precision_of,
    load_llm,
    served,
)
from sextant.points.frame import (
    KEYS,
    KV_PRECISION,
    LENGTHS,
    SERVING,
    SETTINGS,
    SLOTS,
    FactTables,
    execution_classes,
)
from sextant.points.verdict import ProbeOutcome, Verdict
from sextant.predict.predictor import JointPredictor

_SD_PER_LENGTH_FACTOR = 0.1
"""Standard deviation that a factor of e beyond the measured lengths adds to a log-latency."""


@dataclass(frozen=True)
class Case:
    """A question and what it names: measurements, the LLM, the candidates and their prices.

    Another way to serve the LLM is another case (`varied`). What follows is computed once, when it
    is first needed; `excluded` raises InputError where no candidate can serve the LLM.
    """

    question: Question
    """In the precisions in which its LLM was measured, unless it names others."""
    stated: Question
    """The question as it was put."""
    source: Source
    configured_llm: LLM
    """The LLM's facts, in the precisions of the question, without speculation."""
    gpu_profiles: Mapping[str, GPUProfile]
    """All candidates, `excluded` ones too."""
    notes: tuple[str, ...] = ()
    """What is assumed of precisions and prices, one sentence each."""
    exclusions: Mapping[str, str] | None = None
    """`excluded`, where it is known already; None: it follows from the question."""

    def varied(
        self, changes: Mapping[str, Any], gpu_profiles: Mapping[str, GPUProfile] | None = None
    ) -> "Case":
        """Return the case of another way to serve the LLM, without regard to `exclusions`.

        Args:
            changes: fields of the question, by name.
            gpu_profiles: the candidates, if others than now.
        """
        question = replace(self.question, **changes)
        return replace(
            self,
            question=question,
            configured_llm=served(self.configured_llm, question.precision, question.kv_precision),
            gpu_profiles=self.gpu_profiles if gpu_profiles is None else gpu_profiles,
            exclusions=None,
        )

    def without_speculation(self) -> "Case":
        """Return the case without drafts, on the same candidates; sources measure without."""
        if not isinstance(self.llm, Speculating):
            return self
        plain = self.varied(dict.fromkeys(SPECULATION))
        return replace(plain, exclusions=self.excluded)

    def excluding(self, reasons: Mapping[str, str]) -> "Case":
        """Return the case in which more GPU profiles are excluded, each for its reason."""
        return replace(self, exclusions={**self.excluded, **reasons})

    @property
    def llm_id(self) -> str:
        """Name of the LLM."""
        return self.question.llm_name

    @property
    def is_measured(self) -> bool:
        """Whether the source has points of the LLM."""
        return self.llm_id in self.measured_llms

    @cached_property
    def is_answered_by_points(self) -> bool:
        """Whether the LLM's own points answer, and nothing is predicted."""
        return self.question.is_answered_by_points(self.source.characterization)

    @cached_property
    def rate_bounds(self) -> list[RateBounds]:
        """What requests at measured rates say of each GPU profile; empty where the question is of
        users, of other requests, or of other servers."""
        stated = self.stated
        if stated.is_changed or stated.assumptions or stated.risk is not None:
            return []
        points = self.source.characterization.points
        of_llm = (points["llm_id"] == self.llm_id) & points["gpu_profile_id"].isin(
            list(self.gpu_profiles)
        )
        return measured_bounds(points[of_llm], self.question.slo)

    @cached_property
    def is_answered_by_rates(self) -> bool:
        """Whether measured rates answer the asked one.

        They do where each GPU profile that the question names was measured at rates, and some
        profile bears one, or none was found to bear its lowest rate and no other is a candidate.
        """
        measured = {bound.gpu_profile_id for bound in self.rate_bounds}
        if not measured or not {*self.stated.gpu_profile_ids} <= measured:
            return False
        is_served = any(bound.served_rps is not None for bound in self.rate_bounds)
        return is_served or self.gpu_profiles.keys() <= measured

    @property
    def is_answered_by_failures(self) -> bool:
        """Whether too many of the LLM's own requests failed on each candidate at any load."""
        return self.gpu_profiles.keys() <= self.failing.keys()

    @property
    def unborne(self) -> dict[str, str]:
        """Why GPU profiles are not predicted: their lowest measured rate missed the limits."""
        return {
            bound.gpu_profile_id: bound.words
            for bound in self.rate_bounds
            if bound.served_rps is None
        }

    @cached_property
    def own_points(self) -> pd.DataFrame:
        """The LLM's own points on the candidates, of the asked engine and precision."""
        points = self.source.characterization.points
        is_own = points["llm_id"] == self.llm_id
        is_own &= points["gpu_profile_id"].isin(list(self.gpu_profiles))
        question = self.question
        served_as = {"engine": question.engine, "precision": question.precision}
        for column, value in served_as.items():
            if value is not None:
                is_own &= points[column].isna() | (points[column] == value)
        return points[is_own]

    @property
    def failure_notes(self) -> list[str]:
        """At which loads too many of the LLM's own requests failed, and on which of its servers
        nothing rests: what an answer says first."""
        points = self.distrusted_points
        return [
            *failure_notes(self.own_points, self.question.slo),
            *failing_servers_notes(points[points["llm_id"] == self.llm_id]),
        ]

    @property
    def distrusted_points(self) -> pd.DataFrame:
        """The points that no prediction rests on (`trusted_points`)."""
        return self.source.characterization.points.drop(self.trusted_points.index)

    @cached_property
    def trusted_points(self) -> pd.DataFrame:
        """The points that predictions may rest on: without those of servers that failed at any
        load."""
        points = self.source.characterization.points
        return points[~failing_servers(points, self.question.slo)]

    @cached_property
    def failing(self) -> dict[str, str]:
        """Why GPU profiles meet nothing: the LLM's own requests failed there at any load."""
        return failing_profiles(self.own_points, self.question.slo)

    @cached_property
    def llm(self) -> LLM:
        """Facts of the LLM as it is asked to be served. InputError as `speculating` raises."""
        question = self.question
        if question.speculative is None:
            return self.configured_llm
        from sextant.facts.speculation import speculating  # few questions need it

        draft = load_llm(config_file(question.draft_config)) if question.draft_config else None
        return speculating(
            self.configured_llm,
            self.llm_id,
            question.speculative,
            question.draft_tokens or 1,
            question.acceptance,
            draft,
        )

    @cached_property
    def llms(self) -> dict[str, LLM]:
        """Facts of all measured LLMs and of this one."""
        return self.measured_llms | {self.llm_id: self.llm}

    @cached_property
    def measured_llms(self) -> dict[str, LLM]:
        """Facts of the measured LLMs, as the source has them."""
        measured_ids = set(self.source.characterization.points["llm_id"])
        llms = self.source.characterization.llms
        return {llm_id: llm for llm_id, llm in llms.items() if llm_id in measured_ids}

    @cached_property
    def execution(self) -> dict[str, str]:
        """How each LLM is executed (`points.frame.execution_classes`)."""
        return execution_classes(self.llms, self.source.characterization.features)

    @cached_property
    def serving(self) -> Serving:
        """How the LLM is asked to be served, filled in from the source."""
        serving = serving_of(self.question, self.source)
        if isinstance(self.llm, Speculating):
            serving = serving._replace(
                speculative=self.llm.method,
                draft_tokens=self.llm.draft_tokens,
                accepted_length=self.llm.accepted_length,
            )
        if serving.kv_precision is None and (self.question.hf_config or not self.is_measured):
            return serving._replace(kv_precision=kv_precision_of(self.llm))
        return serving

    @property
    def engine(self) -> str:
        """The engine that is asked to serve it."""
        return self.serving.engine or DEFAULT_ENGINE

    @cached_property
    def lengths(self) -> np.ndarray:
        """Mean input and output tokens of the requests, shape (1, 2)."""
        return np.array([[length.mean for length in self.serving.requests]])

    @cached_property
    def mean_lengths(self) -> dict[str, float]:
        """Mean input and output tokens of the requests, by column."""
        means = (length.mean for length in self.serving.requests)
        return dict(zip(LENGTHS, means, strict=True))

    @property
    def lengths_notes(self) -> list[str]:
        """Which lengths are assumed, where the question has none; else nothing."""
        if self.question.requests is not None:
            return []
        inputs, outputs = self.lengths[0]
        whose = f"those of {self.source.label}"
        if len(measured_lengths(self.question, self.source)):
            whose = f"those that {self.llm_id} was measured with"
        return [
            f"No lengths were given: the answer is for requests of {inputs:.0f} input and "
            f"{outputs:.0f} output tokens, {whose}. Give --input-tokens and --output-tokens, or "
            "--workload."
        ]

    @cached_property
    def widening_sd(self) -> float:
        """Standard deviation that is added to log-latencies for lengths that were not measured."""
        if self.question.requests is None:
            return 0.0
        factor = max(length_factors(self.source, self.mean_lengths).values())
        return _SD_PER_LENGTH_FACTOR * math.log(factor)

    @cached_property
    def excluded(self) -> Mapping[str, str]:
        """Why some GPU profiles cannot serve the LLM, by profile. InputError: none can.

        Where the source could not run LLMs of its kind, the profile is excluded, unless it is asked
        for by name: the person may have an engine that can.
        """
        if self.exclusions is not None:
            return self.exclusions
        question = self.question
        execution = self.execution[self.llm_id]
        alike = {llm_id for llm_id, how in self.execution.items() if how == execution}
        gpus_left_out = self.source.gpus_left_out(alike)
        reason = Verdict(ProbeOutcome.OMITTED, source=self.source.characterization.source).reason
        excluded = {
            profile_id: f"LLMs executed alike ({execution}) were {reason}"
            for profile_id, gpu_profile in self.gpu_profiles.items()
            if gpu_profile.gpu.gpu_id in gpus_left_out
            and profile_id not in question.gpu_profile_ids
        }
        excluded |= self._ruled_out(self.gpu_profiles)
        excluded |= uneven_layouts(question, self.llm, self.gpu_profiles)
        excluded |= self.failing
        if len(excluded) < len(self.gpu_profiles):
            return excluded

        largest = max(
            self.failing or excluded,
            key=lambda name: self.gpu_profiles[name].devices.memory_bytes,
        )
        fix = self._remedy(self.gpu_profiles[largest])
        if self.llm.context_tokens < longest_request_tokens(question, self.source):
            fix = "ask about shorter requests, or give a config.json with a longer context"
        if largest in self.failing:
            fix = "find out why they failed and measure again, or allow it (--max-failed)"
        problem = f"no GPU profile can serve {self.llm_id}; {largest}: {excluded[largest]}"
        raise InputError(problem, fix=fix)

    def _remedy(self, gpu_profile: GPUProfile) -> str:
        """Return how the LLM can be served, where a GPU profile has no room for it."""
        enough = nearest_that_serves(
            gpu_profile, lambda profile: not self._ruled_out({"": profile})
        )
        remedies = [f"ask about {enough}" if enough else "add a larger GPU profile"]
        if self.question.max_model_len is not None:
            shorter = self.varied({"max_model_len": None})
            if shorter_len := shorter.start_up(gpu_profile).max_model_len:
                remedies.append(f"start the server with --max-model-len {shorter_len}")
        return ", ".join([*remedies, "or quantize the LLM (--dtype)"])

    def _ruled_out(self, gpu_profiles: Mapping[str, GPUProfile]) -> dict[str, str]:
        """Return why some GPU profiles have no room for the LLM, by profile."""
        return ruled_out(
            self.llm,
            gpu_profiles,
            longest_request_tokens(self.question, self.source),
            self.memory_utilization,
            self.serving.engine,
            self.question.data_parallel or 1,
            self.serving.usual_options,
        )

    @property
    def longest_served_tokens(self) -> int:
        """Tokens of the longest request that a server takes."""
        context = self.llm.context_tokens
        return min(self.question.max_model_len or context, context)

    @property
    def candidates(self) -> list[str]:
        """Ids of the GPU profiles that can serve the LLM."""
        return [profile_id for profile_id in self.gpu_profiles if profile_id not in self.excluded]

    def unmeasured_profiles(self) -> dict[str, GPUProfile]:
        """Return the GPU profiles on sale of GPUs without points, beside the candidates."""
        return unmeasured_candidates(self.question, self.source, self.gpu_profiles)

    def is_gpu_measured(self, profile_id: str) -> bool:
        """Return whether the source has points of this type of GPU."""
        return self.gpu_profiles[profile_id].gpu.gpu_id in self.source.gpu_ids

    def outside_clauses(self, users: int | None = None) -> list[str]:
        """Return in what the case lies outside of the measurements (`outside_of_measurements`)."""
        return outside_of_measurements(
            self.question,
            self.source,
            self.configured_llm,
            self.mean_lengths,
            self.gpu_profiles,
            users,
        )

    def assumed_notes(self) -> list[str]:
        """Return what is assumed of the LLM: its precision, and how many drafts are accepted."""
        notes = note_named_precision(self.question, self.llm_id, self.configured_llm)
        if isinstance(self.llm, Speculating) and self.question.acceptance is None:
            notes += note_uncounted_drafts(self.llm_id, self.llm)
        return notes

    def memory(self, profile_id: str) -> Memory:
        """Return what is where in the memory of a candidate."""
        return self.memory_on(self.gpu_profiles[profile_id])

    def memory_on(self, gpu_profile: GPUProfile) -> Memory:
        """Return what is where in the memory of a GPU profile."""
        return memory_of(
            self.llm,
            gpu_profile.devices,
            self.memory_utilization,
            self.engine,
            self.serving.copies(gpu_profile),
            self.serving.server_options,
        )

    @property
    def memory_utilization(self) -> float | None:
        """Share of the memory that a server may use; None: as its engine ships."""
        if self.question.gpu_memory_utilization is not None:
            return self.question.gpu_memory_utilization
        # A source says what share its vLLM servers were given.
        return self.source.memory_utilization if self.engine == DEFAULT_ENGINE else None

    def start_up(self, gpu_profile: GPUProfile) -> StartUp:
        """Return how a replica starts on a GPU profile."""
        served = replace(self.llm, context_tokens=self.longest_served_tokens)
        return start_up_of(
            served,
            gpu_profile,
            self.memory_on(gpu_profile),
            self.engine,
            self.serving.copies(gpu_profile),
            longest_request_tokens(self.question, self.source),
            sum(self.mean_lengths.values()),
        )

    @cached_property
    def probe(self) -> pd.DataFrame | None:
        """What was measured of the LLM (`read_probe`), None without a file; InputError: wrong."""
        if self.question.probe is None:
            return None
        from sextant.ask.probe import read_probe  # few questions have one

        gpu_profiles = {**self.source.characterization.profiles, **self.gpu_profiles}
        lengths = self.lengths[0]
        return read_probe(self.question.probe, self.llm_id, self.llm, gpu_profiles, lengths)

    def probe_notes(self, *, has_steps: bool) -> list[str]:
        """Return what to know of the measured loads, as `probe.notes_on` says it."""
        if self.probe is None:
            return []
        from sextant.ask.probe import notes_on  # few questions have one

        return notes_on(
            self.probe,
            self.lengths,
            has_steps=has_steps,
            is_limit_stated=self.question.max_num_seqs is not None,
        )

    def training_rows(
        self,
        model: JointPredictor,
        points: pd.DataFrame,
        gpu_profiles: Mapping[str, GPUProfile],
    ) -> pd.DataFrame:
        """Return the design matrix of measured points."""
        facts = FactTables(self.measured_llms, gpu_profiles, self.source.characterization.features)
        return model.design(self.measured_keys(points), facts)

    def measured_keys(self, points: pd.DataFrame) -> pd.DataFrame:
        """Return the keys of measured points, as training takes them.

        Points of fixed request lengths keep their own. The other points of a source share the
        source's medians, as a point's mean depends on which requests its server answered.
        """
        medians = self.source.characterization.points.groupby("source")[LENGTHS].median()
        shared = medians.reindex(points["source"]).set_axis(points.index)
        lengths = points[LENGTHS].where(points["source"].isin(self.source.fixed), shared)
        return points[["source", *KEYS, *SERVING, *SETTINGS]].join(lengths)

    def asked_rows(
        self, model: JointPredictor, keys: pd.DataFrame, gpu_profiles: Mapping[str, GPUProfile]
    ) -> pd.DataFrame:
        """Return the design matrix of `keys` for the asked servers, as most of the engine's points
        are measured.

        Where `keys` have lengths, these are the requests'; else the asked ones count. Where `keys`
        have settings of the scheduler, these servers plan so; where they have a precision of the KV
        cache, they keep it so.
        """
        facts = FactTables(self.llms, gpu_profiles, self.source.characterization.features)
        names = (*LENGTHS, *SETTINGS, KV_PRECISION)
        stated = keys[[name for name in names if name in keys]]
        points = self.source.characterization.points
        of_engine = points[points["engine"] == self.engine]
        main_source = (of_engine if len(of_engine) else points)["source"].mode()[0]
        columns = self.serving.columns() | {"source": main_source}
        slots = {name: self.serving.slots(gpu_profiles[name]) for name in {*keys["gpu_profile_id"]}}
        columns[SLOTS] = keys["gpu_profile_id"].map(slots)
        return model.design(keys[KEYS].assign(**columns).assign(**stated), facts)

    def rows_at(
        self, model: JointPredictor, users: list[int], profile_ids: list[str] | None = None
    ) -> pd.DataFrame:
        """Return its design matrix at these user counts, on all candidates unless given."""
        names = self.candidates if profile_ids is None else profile_ids
        keys = [(self.llm_id, profile_id, count) for profile_id in names for count in users]
        return self.asked_rows(model, pd.DataFrame(keys, columns=KEYS), self.gpu_profiles)


def read_case(
    question: Question, *, need_prices: bool = True, field: str = "--gpu-profiles"
) -> Case:
    """Find what a question names: measurements, the LLM, the candidates and their prices.

    Args:
        question: what is asked.
        need_prices: whether a candidate without a price is an error.
        field: the option that names the candidates.

    Raises:
        InputError: an option is wrong, or names something that is not known.
    """
    check_question(question)
    stated = question
    source = find_source(question)
    id_in_files = (question.llm_id or "").replace("/", "__")
    if id_in_files in source.characterization.llms:
        question = replace(question, llm_id=id_in_files)  # as files name an id of Hugging Face
    question, notes = as_measured(question, source.characterization)
    notes += price_notes(question, source.characterization.profiles)
    notes += doubt_notes(source.characterization.points, question.llm_name)

    llm = find_llm(question, source.characterization)
    notes += config_notes(question, source.characterization)
    if question.api_prices is not None:  # checked before anything is simulated
        find_api_prices(question.api_prices, question.llm_name)
    candidates = candidates_of(question, source, need_prices=need_prices, field=field)
    return Case(question, stated, source, llm, candidates, tuple(notes))
