"""An LLM without measurements: latencies, options and their probabilities from `roofline`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from sextant.advice.offer import profile
from sextant.advice.source import Source
from sextant.base.errors import InputError
from sextant.characterizations.points import IDENTIFIERS, TARGETS, at_percentile, has_latency
from sextant.decide.decision import weigh
from sextant.experiment.memory import assess
from sextant.experiment.slo import SLO
from sextant.hardware.gpu import GPUProfile
from sextant.importing.llm_pilot import REASONS
from sextant.llm import LLM
from sextant.predict.references import Rows
from sextant.predict.roofline import Roofline
from sextant.predict.roofline.facts import execution_classes, fact_rows

KEYS = [*IDENTIFIERS, "users"]


@dataclass(frozen=True)
class Subject:
    """The LLM that is asked about, the profiles that may serve it, and what the law knows."""

    llm_id: str
    llms: Mapping[str, LLM]
    """All measured LLMs, and this one."""
    profiles: Mapping[str, GPUProfile]
    """Those on offer."""
    excluded: Mapping[str, str]
    """Why some of them cannot serve it, by profile."""
    source: Source

    @property
    def llm(self) -> LLM:
        """Its facts."""
        return self.llms[self.llm_id]

    @property
    def execution(self) -> dict[str, str]:
        """How each LLM is executed."""
        return execution_classes(self.llms, self.source.known.features)

    @property
    def candidates(self) -> list[str]:
        """The profiles that its memory facts allow."""
        return [name for name in self.profiles if name not in self.excluded]

    def facts(self, keys: pd.DataFrame, profiles: Mapping[str, GPUProfile]) -> pd.DataFrame:
        """Return the design matrix of points."""
        lengths = self.source.input_tokens, self.source.output_tokens
        return fact_rows(keys, self.llms, profiles, self.execution, *lengths)

    def rows_at(self, users: list[int], profile_ids: list[str] | None = None) -> pd.DataFrame:
        """Return its design matrix at these user counts, on all candidates unless given."""
        names = self.candidates if profile_ids is None else profile_ids
        keys = [(self.llm_id, name, count) for name in names for count in users]
        return self.facts(pd.DataFrame(keys, columns=KEYS), self.profiles)


def subject_of(
    llm_id: str,
    llm: LLM,
    source: Source,
    profiles: Mapping[str, GPUProfile],
    wanted: Collection[str] = (),
) -> Subject:
    """Return the LLM beside the measured ones, with the profiles that cannot serve it.

    Where the source could not run LLMs of its kind, it is not offered either; but on a profile
    that is `wanted` by name the person may have an engine that can.

    Raises:
        InputError: no profile can serve it.
    """
    measured = set(source.known.points["llm_id"])
    llms = {name: facts for name, facts in source.known.llms.items() if name in measured}
    excluded = exclusions(llm, source, profiles)
    left_out = _left_out(llm_id, llms | {llm_id: llm}, source, profiles)
    excluded = {name: why for name, why in left_out.items() if name not in wanted} | excluded
    if len(excluded) == len(profiles):
        name = max(excluded, key=lambda name: profiles[name].devices.memory_bytes)
        reason = excluded[name]
        fix = "offer larger profiles (--gpu-profiles, --prices), or quantize the LLM"
        raise InputError(f"no GPU profile can serve {llm_id}; {name}: {reason}", fix=fix)
    return Subject(llm_id, llms | {llm_id: llm}, profiles, excluded, source)


def exclusions(llm: LLM, source: Source, profiles: Mapping[str, GPUProfile]) -> dict[str, str]:
    """Return why an LLM cannot serve the workload's longest request, by profile."""
    longest = source.longest_request_tokens
    if llm.context_tokens < longest:
        reason = (
            f"its context of {llm.context_tokens} tokens is below the longest request's {longest}"
        )
        return dict.fromkeys(profiles, reason)
    found = {
        name: assess(llm, each.devices, source.memory_utilization, longest)
        for name, each in profiles.items()
    }
    return {
        name: verdict.reason.removeprefix("does not fit: ").removeprefix("unsupported: ")
        for name, verdict in found.items()
        if not verdict.is_feasible
    }


def _left_out(
    llm_id: str, llms: Mapping[str, LLM], source: Source, profiles: Mapping[str, GPUProfile]
) -> dict[str, str]:
    """Return the profiles of GPUs on which the source left out all LLMs that run like this one."""
    known = source.known
    execution = execution_classes(llms, known.features)
    tried = known.feasibility[["llm_id", "gpu_profile_id", "is_feasible", "reason"]]
    tried = tried[tried["llm_id"].map(execution) == execution[llm_id]]
    gpu_ids = tried["gpu_profile_id"].map(lambda name: known.profiles[name].gpu.gpu_id)
    measured = set(gpu_ids[tried["is_feasible"].astype(bool)])
    omitted = set(gpu_ids[tried["reason"] == REASONS["omitted"]]) - measured
    return {
        name: f"LLMs executed alike ({execution[llm_id]}) were {REASONS['omitted']}"
        for name, each in profiles.items()
        if each.gpu.gpu_id in omitted
    }


@dataclass(frozen=True)
class Forecast:
    """A fitted model and its joint draws for one LLM."""

    subject: Subject
    slo: SLO
    model: Roofline
    X: pd.DataFrame
    """Every candidate at every tried number of users."""
    samples_ms: np.ndarray
    """Draws of nTTFT and ITL, (draws, rows of `X`, 2)."""

    def options(self, slo: SLO | None = None) -> pd.DataFrame:
        """Return what `weigh` says of every option, for this promise or another."""
        return weigh(self.samples_ms, self.X, self.subject.profiles, slo or self.slo)

    def at(self, profile_id: str, users: int) -> pd.Series:
        """Return the medians and 90% intervals of the latencies at one load of a replica."""
        return self.model.predict(self.subject.rows_at([users], [profile_id])).iloc[0]


def forecast(subject: Subject, slo: SLO, seed: int, probe: pd.DataFrame | None = None) -> Forecast:
    """Fit the measured LLMs, and the probe if there is one, and draw the asked LLM's latencies.

    Raises:
        InputError: too few LLMs were measured.
    """
    known = subject.source.known
    latencies = at_percentile(known.points, slo.percentile)
    latencies = latencies[has_latency(latencies)].reset_index(drop=True)
    n_llms = latencies["llm_id"].nunique()
    if n_llms < Roofline.min_training_llms:
        problem = f"{n_llms} LLMs with points, of {Roofline.min_training_llms} that are needed"
        raise InputError(f"no prediction is possible ({problem})", fix="measure more LLMs")
    profiles = {**known.profiles, **subject.profiles}
    training = Rows(subject.facts(latencies[KEYS], profiles), latencies[TARGETS])
    references = None
    if probe is not None:
        measured_on = probe["gpu_profile_id"].unique()
        profiles |= {name: profile(name, profiles, field="--probe") for name in measured_on}
        references = Rows(subject.facts(probe[KEYS], profiles), probe[TARGETS])
    model = Roofline(slo, profiles, seed).fit(training, references)
    X = subject.rows_at(sorted(latencies["users"].unique().tolist()))
    return Forecast(subject, slo, model, X, model.sample(X))


def changed(slo: SLO, limits: float = 1.0, users: float = 1.0) -> SLO:
    """Return the promise with both limits, or the users, multiplied."""
    return replace(
        slo,
        nttft_ms=slo.nttft_ms * limits,
        itl_ms=slo.itl_ms * limits,
        users=max(1, round(slo.users * users)),
    )
