"""The LLM that is asked about beside the measured ones, and the profiles that may serve it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from sextant.answer.basis import widening_sd
from sextant.answer.offer import read_probe
from sextant.answer.question import Question
from sextant.answer.serving import Serving, longest_of, serving_of
from sextant.answer.source import Source
from sextant.base.errors import InputError
from sextant.decide.pairs import ruled_out
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.points.cells.verdict import Outcome, Verdict
from sextant.points.characterizations.execution import execution_classes
from sextant.points.characterizations.features import Facts
from sextant.points.characterizations.points import (
    LENGTHS,
    SERVING,
)
from sextant.predict.folds import KEYS
from sextant.predict.protocols import JointPredictor


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
    serving: Serving
    widening_sd: float = 0.0
    """Added to log-latencies: the question lies outside of what was measured."""

    @property
    def llm(self) -> LLM:
        """Its facts."""
        return self.llms[self.llm_id]

    @property
    def measured(self) -> dict[str, LLM]:
        """The measured LLMs, as the source has them."""
        names = set(self.source.known.points["llm_id"])
        return {name: llm for name, llm in self.source.known.llms.items() if name in names}

    @property
    def execution(self) -> dict[str, str]:
        """How each LLM is executed."""
        return execution_classes(self.llms, self.source.known.features)

    @property
    def candidates(self) -> list[str]:
        """The profiles that its memory facts allow."""
        return [name for name in self.profiles if name not in self.excluded]

    @property
    def lengths(self) -> np.ndarray:
        """Mean input and output tokens of the asked requests, shape (1, 2)."""
        return np.array([[each.mean for each in self.serving.requests]])

    def probe(self, path: Path | None) -> pd.DataFrame | None:
        """Return what was measured of it (`offer.read_probe`), None without a file.

        Raises:
            InputError: the file is wrong.
        """
        if path is None:
            return None
        known = {**self.source.known.profiles, **self.profiles}
        return read_probe(path, self.llm_id, known, self.lengths[0])

    def training(
        self, model: JointPredictor, points: pd.DataFrame, profiles: Mapping[str, GPUProfile]
    ) -> pd.DataFrame:
        """Return the design matrix of measured points.

        Each keeps its own lengths where the source's requests have fixed ones; else the points of
        a source share their medians, as a point's mean depends on which requests it answered.
        """
        facts = Facts(self.measured, profiles, self.source.known.features)
        return model.design(self.measured_keys(points), facts)

    def measured_keys(self, points: pd.DataFrame) -> pd.DataFrame:
        """Return the keys of measured points, with the lengths that `training` says."""
        known = self.source.known
        fixed = [each.source for each in known.descriptions if each.lengths == "fixed"]
        medians = known.points.groupby("source")[LENGTHS].median()
        shared = medians.reindex(points["source"]).set_axis(points.index)
        own = points[LENGTHS].where(points["source"].isin(fixed), shared)
        return points[[*KEYS, *SERVING]].join(own)

    def asked(
        self, model: JointPredictor, keys: pd.DataFrame, profiles: Mapping[str, GPUProfile]
    ) -> pd.DataFrame:
        """Return the design matrix of `keys` for the asked servers.

        Where `keys` have lengths, those are the requests'; else they are the asked ones.
        """
        facts = Facts(self.llms, profiles, self.source.known.features)
        own = keys[[name for name in LENGTHS if name in keys]]
        return model.design(keys[KEYS].assign(**self.serving.columns()).assign(**own), facts)

    def is_cache_used(self, model: JointPredictor) -> bool:
        """Return whether a model's predictions can depend on the prefix cache."""
        bare = replace(self, serving=self.serving._replace(prefix_hit_rate=0.0))
        rows = [each.rows_at(model, [1]) for each in (self, bare)]
        return not rows[0].equals(rows[1])

    def rows_at(
        self, model: JointPredictor, users: list[int], profile_ids: list[str] | None = None
    ) -> pd.DataFrame:
        """Return its design matrix at these user counts, on all candidates unless given."""
        names = self.candidates if profile_ids is None else profile_ids
        keys = [(self.llm_id, name, count) for name in names for count in users]
        return self.asked(model, pd.DataFrame(keys, columns=KEYS), self.profiles)


def subject_of(
    question: Question, llm_id: str, llm: LLM, source: Source, profiles: Mapping[str, GPUProfile]
) -> Subject:
    """Return the LLM beside the measured ones, with the profiles that cannot serve it.

    Where the source could not run LLMs of its kind, it is not offered either; but on a profile
    that is asked for by name the person may have an engine that can.

    Raises:
        InputError: no profile can serve it.
    """
    measured = set(source.known.points["llm_id"])
    llms = {name: facts for name, facts in source.known.llms.items() if name in measured}
    serving = serving_of(question, source)
    longest = longest_of(question, source)
    excluded = ruled_out(llm, profiles, longest, source.memory_utilization)
    left_out = _left_out(llm_id, llms | {llm_id: llm}, source, profiles)
    excluded = {
        name: why for name, why in left_out.items() if name not in question.gpu_profile_ids
    } | excluded
    if len(excluded) == len(profiles):
        name = max(excluded, key=lambda name: profiles[name].devices.memory_bytes)
        reason = excluded[name]
        fix = "offer a larger GPU profile or another number of GPUs, or quantize the LLM"
        if llm.context_tokens < longest:
            fix = "ask about shorter requests, or give a config.json with a longer context"
        raise InputError(f"no GPU profile can serve {llm_id}; {name}: {reason}", fix=fix)
    lengths = dict(zip(LENGTHS, (each.mean for each in serving.requests), strict=True))
    sd = widening_sd(source, lengths) if question.requests else 0.0
    return Subject(llm_id, llms | {llm_id: llm}, profiles, excluded, source, serving, sd)


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
