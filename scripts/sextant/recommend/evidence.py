"""The nearest measurements: what was measured of similar LLMs on the recommended GPU profile."""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from sextant.ask.case import Case
from sextant.decide.sizing import u_max
from sextant.facts.gpu import GIB
from sextant.facts.llm import precision_of, served
from sextant.facts.slo import SLO
from sextant.points.frame import LENGTHS, SERVING, judged
from sextant.recommend.recommendation import NearMeasurement

_N_NEAREST = 2


def nearest_measurements(case: Case, profile_id: str, slo: SLO) -> list[NearMeasurement]:
    """Return the measured LLMs most similar to the asked one, on a GPU profile.

    LLMs executed alike come first, then those on the asked engine, then those of nearest weight
    bytes as they were served. Of each LLM it is the requests of the nearest lengths, and of several
    ways to serve these the one that served the most users within the limits. Points without
    lengths are left out.
    """

    def distance(near: NearMeasurement) -> tuple[bool, bool, float, float, int]:
        weights = abs(math.log(near.weights_gib * GIB / case.llm.weight_bytes))
        lengths = [near.input_tokens, near.output_tokens]
        length_distance = np.abs(np.log(lengths / case.lengths)).sum()
        is_other_engine = near.engine not in (None, case.serving.engine)
        return (
            not near.is_executed_alike,
            is_other_engine,
            weights,
            float(length_distance),
            -near.users_per_replica,
        )

    by_llm: dict[str, NearMeasurement] = {}
    for near in sorted(_measurements(case, profile_id, slo), key=distance):
        by_llm.setdefault(near.llm_id, near)
    return [*by_llm.values()][:_N_NEAREST]


def _measurements(case: Case, profile_id: str, slo: SLO) -> Iterator[NearMeasurement]:
    """Return one measurement per LLM and way to serve it, of the nearest request lengths."""
    points = case.source.characterization.points
    points = judged(points[points["gpu_profile_id"] == profile_id], slo)
    points = points[points["gpu_profile_id"] == profile_id].dropna(subset=["users", *LENGTHS])
    execution = case.execution
    fixed = case.source.fixed
    for _, part in points.groupby(["llm_id", *SERVING], dropna=False):
        if fixed and part["source"].isin(fixed).all():
            distance = np.abs(np.log(part[LENGTHS].to_numpy(float) / case.lengths)).sum(axis=1)
            part = part[distance <= distance.min() + 1e-9]
        first = part.iloc[0]
        llm_id = first["llm_id"]
        way = {name: None if pd.isna(first[name]) else first[name] for name in SERVING}
        llm = served(case.measured_llms[llm_id], way["precision"], way["kv_precision"])
        yield NearMeasurement(
            llm_id,
            first["gpu_profile_id"],
            weights_gib=llm.weight_bytes / GIB,
            precision=precision_of(llm),
            engine=way["engine"],
            engine_version=way["engine_version"],
            execution=execution[llm_id],
            is_executed_alike=execution[llm_id] == execution[case.llm_id],
            users_per_replica=u_max(part, slo),
            most_users_tried=int(part["users"].max()),
            input_tokens=float(part[LENGTHS[0]].median()),
            output_tokens=float(part[LENGTHS[1]].median()),
        )
