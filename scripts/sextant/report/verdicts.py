"""What a store says of each LLM under each SLO: the deployment, how sure it is, what to doubt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sextant.answer.option import Option
from sextant.base.files import Row, group_by
from sextant.decide.decision import FAIR
from sextant.facts.slo import SLO
from sextant.report.stored import (
    MissedLimit,
    StoredRecommendation,
    Tables,
    slo_reports,
    slos_by_id,
)

Basis = Literal["measured", "predicted", "steady", "simulated"]
"""Whether an answer rests on the LLM's points, on a predictor, on a steady load in place of
requests that arrive at their own times, or on a simulation of these."""


@dataclass(frozen=True)
class Verdict:
    """What a store says of one LLM under one SLO."""

    slo: SLO
    llm_id: str
    option: Option
    """The cheapest deployment, or the likeliest; all None: there is none."""
    basis: Basis
    nearest_miss: MissedLimit | None = None
    last_level: int | None = None
    """The most users a replica that were tried, where fewer replicas may do with more."""
    options: Sequence[Option] = ()
    """The option of each GPU profile that has a price and a probability."""

    @property
    def is_met(self) -> bool:
        """Whether the SLO is more likely met than not; what nobody can say counts as met."""
        option = self.option
        return option.gpu_profile_id is not None and (option.probability_met or 1.0) >= FAIR

    @property
    def further_levels(self) -> list[int]:
        """Users a replica to measure next: the last level doubled, up to the SLO's load."""
        levels = []
        level = self.last_level
        while level is not None and level < (self.slo.users or 0):
            level = min(2 * level, self.slo.users or 0)
            levels.append(level)
        return levels


def verdicts_by_slo(tables: Tables, source: str) -> dict[str, dict[str, Verdict]]:
    """Return the verdicts of a source by SLO and LLM.

    An LLM whose requests were simulated has that answer alone. The first recommendation for
    another LLM is that of the best judged predictor.
    """
    by_slo: dict[str, dict[str, Verdict]] = {}
    candidates = group_by(tables["candidate"], "source", "slo_id", "llm_id", "predictor")
    for report in slo_reports(tables):
        if report.source != source:
            continue
        verdicts = by_slo.setdefault(report.slo.slo_id, {})
        for answer in report.recommendations:
            key = (source, report.slo.slo_id, answer.llm_id, answer.predictor)
            rows = candidates.get(key, [])
            verdicts.setdefault(answer.llm_id, _verdict(tables, report.slo, answer, rows))

    slos = slos_by_id(tables)
    simulated = [row for row in tables["capacity"] if row["source"] == source]
    for (slo_id,), of_slo in group_by(simulated, "slo_id").items():
        slo = slos[slo_id]
        verdicts = by_slo.setdefault(slo_id, {})
        for (llm_id,), rows in group_by(of_slo, "llm_id").items():
            if rows[0]["gpu_profile_id"] is not None or llm_id not in verdicts:
                verdicts[llm_id] = _simulated_verdict(slo, llm_id, rows)
    return by_slo


def _verdict(
    tables: Tables, slo: SLO, answer: StoredRecommendation, candidates: Sequence[Row]
) -> Verdict:
    is_simulated_elsewhere = any(
        (row["source"], row["slo_id"]) == (answer.source, slo.slo_id) for row in tables["capacity"]
    )
    basis: Basis = "measured" if answer.is_measured else "predicted"
    return Verdict(
        slo,
        answer.llm_id,
        answer.option,
        "steady" if is_simulated_elsewhere else basis,
        answer.nearest_miss,
        _last_level(tables, answer, slo) if answer.is_measured else None,
        _priced([Option.of(row) for row in candidates]),
    )


def _last_level(tables: Tables, answer: StoredRecommendation, slo: SLO) -> int | None:
    """Return the most users that were tried, if the replicas hold as many and there are several."""
    option = answer.option
    if slo.users is None or option.users_per_replica is None or (option.replicas or 0) < 2:
        return None
    tried = [
        point["users"] or 0
        for point in tables["deciding"]
        if (point["source"], point["llm_id"], point["gpu_profile_id"])
        == (answer.source, answer.llm_id, option.gpu_profile_id)
    ]
    most = int(max(tried, default=0))
    return most if most and option.users_per_replica >= most else None


def _simulated_verdict(slo: SLO, llm_id: str, rows: Sequence[Row]) -> Verdict:
    chosen = next((Option.of(row) for row in rows if row["is_chosen"]), Option())
    options = [Option.of(row) for row in rows if row["status"] == "meets"]
    return Verdict(slo, llm_id, chosen, "simulated", options=_priced(options))


def _priced(options: Sequence[Option]) -> list[Option]:
    return [
        option
        for option in options
        if option.usd_per_hour is not None and option.probability_met is not None
    ]


def decided_workloads(tables: Tables, source: str) -> list[Row]:
    """Return the workloads that a source's recommendations rest on."""
    names = {point["workload_id"] for point in tables["deciding"] if point["source"] == source}
    return [row for row in tables["workload"] if row["workload_id"] in names]


def caps_words(workload: Mapping[str, int | None]) -> str:
    """Return the lengths that requests were cut to, e.g. `512 input and 64 output tokens`."""
    sides = [
        f"{workload[f'max_{side}_tokens']:,} {side}"
        for side in ("input", "output")
        if workload[f"n_clipped_{side}"] and workload[f"max_{side}_tokens"]
    ]
    return f"{' and '.join(sides)} tokens" if sides else ""
