"""An LLM without measurements: joint draws of its latencies, and the options that follow."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sextant.advice.offer import profile
from sextant.advice.source import Source
from sextant.base.errors import InputError
from sextant.cells.verdict import Outcome, Verdict
from sextant.characterizations.execution import execution_classes
from sextant.characterizations.features import Facts
from sextant.characterizations.points import (
    LENGTHS,
    TARGETS,
    at_percentile,
    has_latency,
)
from sextant.decide.decision import weigh
from sextant.decide.pairs import ruled_out
from sextant.experiment.slo import SLO
from sextant.hardware.gpu import GPUProfile
from sextant.llm import LLM
from sextant.predict.draws import INTERVAL, Draws
from sextant.predict.folds import KEYS
from sextant.predict.protocols import JointPredictor
from sextant.predict.references import Rows


@dataclass(frozen=True)
class Subject:
    """The LLM that is asked about, the profiles that may serve it, and what is known."""

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

    def design(
        self, model: JointPredictor, keys: pd.DataFrame, profiles: Mapping[str, GPUProfile]
    ) -> pd.DataFrame:
        """Return the design matrix of `keys`, with requests as long as the workload's mean."""
        means = self.source.input_tokens, self.source.output_tokens
        lengths = dict(zip(LENGTHS, means, strict=True))
        facts = Facts(self.llms, profiles, self.source.known.features)
        return model.design(keys[KEYS].assign(**lengths), facts)

    def rows_at(
        self, model: JointPredictor, users: list[int], profile_ids: list[str] | None = None
    ) -> pd.DataFrame:
        """Return its design matrix at these user counts, on all candidates unless given."""
        names = self.candidates if profile_ids is None else profile_ids
        keys = [(self.llm_id, name, count) for name in names for count in users]
        return self.design(model, pd.DataFrame(keys, columns=KEYS), self.profiles)


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
    excluded = ruled_out(llm, profiles, source.longest_request_tokens, source.memory_utilization)
    left_out = _left_out(llm_id, llms | {llm_id: llm}, source, profiles)
    excluded = {name: why for name, why in left_out.items() if name not in wanted} | excluded
    if len(excluded) == len(profiles):
        name = max(excluded, key=lambda name: profiles[name].devices.memory_bytes)
        reason = excluded[name]
        fix = "offer larger profiles (--gpu-profiles, --prices), or quantize the LLM"
        raise InputError(f"no GPU profile can serve {llm_id}; {name}: {reason}", fix=fix)
    return Subject(llm_id, llms | {llm_id: llm}, profiles, excluded, source)


def _left_out(
    llm_id: str, llms: Mapping[str, LLM], source: Source, profiles: Mapping[str, GPUProfile]
) -> dict[str, str]:
    """Return the profiles of GPUs on which the source left out all LLMs that run like this one."""
    known = source.known
    execution = execution_classes(llms, known.features)
    tried = known.feasibility[["llm_id", "gpu_profile_id", "is_feasible", "verdict"]]
    tried = tried[tried["llm_id"].map(execution) == execution[llm_id]]
    gpu_ids = tried["gpu_profile_id"].map(lambda name: known.profiles[name].gpu.gpu_id)
    measured = set(gpu_ids[tried["is_feasible"].astype(bool)])
    omitted = set(gpu_ids[tried["verdict"] == Outcome.OMITTED]) - measured
    why = Verdict(Outcome.OMITTED, source=known.source).reason
    return {
        name: f"LLMs executed alike ({execution[llm_id]}) were {why}"
        for name, each in profiles.items()
        if each.gpu.gpu_id in omitted
    }


@dataclass(frozen=True)
class Forecast:
    """A fitted model and its joint draws for one LLM."""

    subject: Subject
    slo: SLO
    model: JointPredictor
    draws: Draws
    """Of every candidate at every tried number of users."""

    @property
    def lengths(self) -> np.ndarray:
        """Mean input and output tokens of a request, shape (1, 2)."""
        return self.draws.X[LENGTHS].to_numpy(float)[:1]

    def options(self, slo: SLO | None = None) -> pd.DataFrame:
        """Return what `weigh` says of every option, for this SLO or another."""
        return weigh(self.draws, self.subject.profiles, slo or self.slo)

    def at(self, profile_id: str, users: int) -> pd.Series:
        """Return the medians and 90% intervals of the latencies at one load of a replica.

        Those are `<latency>_ms, <latency>_lo_ms, <latency>_hi_ms` of nTTFT, ITL and all that has a
        limit, and `<limit>_ratio`, median over limit.
        """
        X = self.subject.rows_at(self.model, [users], [profile_id])
        draws = Draws(X, self.model.sample(X))
        found = draws.summary().iloc[0].to_dict()
        limited = self.slo.latencies(draws.samples_ms[:, 0], self.lengths[0])
        for name, values in limited.items():
            low, median, high = np.quantile(values, [INTERVAL[0], 0.5, INTERVAL[1]])
            found |= {f"{name}_ms": median, f"{name}_lo_ms": low, f"{name}_hi_ms": high}
            found[f"{name}_ratio"] = median / self.slo.limits[name].limit_ms
        return pd.Series(found)


def forecast(
    model: JointPredictor, subject: Subject, slo: SLO, probe: pd.DataFrame | None = None
) -> Forecast:
    """Fit a model to the measured LLMs, and to the probe if there is one; draw latencies.

    Raises:
        InputError: too few LLMs were measured.
    """
    known = subject.source.known
    latencies = at_percentile(known.points, slo.percentiles)
    latencies = latencies[has_latency(latencies)].reset_index(drop=True)
    n_llms = latencies["llm_id"].nunique()
    if n_llms < model.min_training_llms:
        problem = f"{n_llms} LLMs with points, of {model.min_training_llms} that are needed"
        raise InputError(f"no prediction is possible ({problem})", fix="measure more LLMs")
    profiles = {**known.profiles, **subject.profiles}
    training = Rows(subject.design(model, latencies, profiles), latencies[TARGETS])
    references = None
    if probe is not None:
        measured_on = probe["gpu_profile_id"].unique()
        profiles |= {name: profile(name, profiles, field="--probe") for name in measured_on}
        references = Rows(subject.design(model, probe, profiles), probe[TARGETS])
    model.fit(training, references)
    X = subject.rows_at(model, sorted(latencies["users"].unique().tolist()))
    return Forecast(subject, slo, model, Draws(X[[*KEYS, *LENGTHS]], model.sample(X)))
