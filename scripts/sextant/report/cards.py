"""The card of an LLM on the report: its deployment, room to the limits, latency over load."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sextant.answer import words as text
from sextant.base.files import Row
from sextant.decide.headroom import Headroom, measure_headroom
from sextant.facts.slo import ENDS, METRICS, PERCENTILE_PREFIX, SLO
from sextant.pages.blocks import Beside, Block, Chart, Facts, Headline, Note, Section
from sextant.pages.charts import NARROW_IN, Axis, Curve, Panel, panels_figure
from sextant.pages.words import chance, number, plural, usd_words
from sextant.points.frame import TARGETS, limited, replica_load
from sextant.recommend.what_if import of_points, what_if_widget
from sextant.report.answers import deployment_cell, miss_words, slo_words
from sextant.report.stored import (
    SLOReport,
    StoredRecommendation,
    Tables,
    load_curves,
    measured_word,
    simulated_llms,
)

_MAX_TICKS = 10


@dataclass(frozen=True)
class DeploymentCard:
    """What the page says of one LLM under an SLO."""

    slo: SLO
    answer: StoredRecommendation
    """From measurements, or of the best judged predictor."""
    others: Sequence[StoredRecommendation]
    """Of the other predictors."""
    curves: pd.DataFrame
    """Rows of `load_curves` that the answer rests on."""
    headroom: Headroom | None
    """None: no GPU profile is recommended, or it has no curve."""

    @property
    def decision(self) -> Row:
        """Its entry under `decisions` in the report's JSON."""
        return {
            "source": self.answer.source,
            "slo_id": self.answer.slo_id,
            "llm_id": self.answer.llm_id,
            "predictor": self.answer.predictor,
            "gpu_profile_id": self.answer.option.gpu_profile_id,
            "replicas": self.answer.option.replicas,
            "headroom": self.headroom and self.headroom.to_dict(),
        }

    def section(
        self, heading: str, usd_by_profile: dict[str, float], what_if_id: str, *, is_open: bool
    ) -> Section:
        """Return the card as a part of the SLO's section, which has this heading.

        `what_if_id` begins the ids of the part in which the question can be changed.
        """
        llm_id = self.answer.llm_id
        is_measured = self.answer.is_measured
        how = f"predicted by {self.answer.predictor}"
        if is_measured:
            how = measured_word(self.answer.source)
        facts = self.facts_blocks()
        charts: list[Block] = []
        if self.curves[TARGETS].notna().any(axis=None):
            subject = llm_id if is_measured else f"{llm_id}, {how}"
            for metric in self.slo.limits:
                title = f"{METRICS[metric]} over load, {heading}, {subject}"
                svg = panels_figure(
                    [self.load_panel(metric)], title, width_in=NARROW_IN, has_points=True
                )
                charts.append(Chart(svg, name=f"load {heading} {llm_id} {metric}"))
        blocks: list[Block] = [Beside([*facts, *charts])]

        # With limits on lengths the answers rest on some of the points alone.
        can_ask = is_measured and not self.slo.lengths
        if can_ask and (basis := of_points(self.curves, usd_by_profile, self.slo)):
            blocks.append(what_if_widget(basis, id_prefix=what_if_id, fold=llm_id))

        title = f"{llm_id} ({how}): {deployment_cell(self.answer.option)}"
        return Section(title, blocks, is_detail=True, is_open=is_open)

    def facts_blocks(self) -> list[Block]:
        """Return the deployment's cost, its room to the limits, and other predictors' answers."""
        option = self.answer.option
        names = self.answer.not_measured
        missing = []
        if self.answer.is_measured and names:
            few = ", ".join(names) if len(names) <= 4 else f"{len(names)} other GPU profiles"
            missing = [Note(f"Not measured on {few}.", "soft")]
        if option.gpu_profile_id is None:
            return [
                Headline(f"No GPU profile meets this SLO; {miss_words(self.answer)}."),
                *missing,
            ]

        room = self.headroom
        price = text.price_words(room) if room else usd_words(option.usd_per_hour)
        facts = [("Price", price)]
        if option.probability_met is not None:
            rests_on = f"; {text.OPEN_WORDS}" if room and room.is_open else ""
            facts.append(("Probability to meet the SLO", chance(option.probability_met) + rests_on))
        if room:
            load = plural(room.users_per_replica, "user")
            if room.level_users != room.users_per_replica:
                load += f", judged at {number(room.level_users)} users, the nearest load above "
                load += "that was tried"
            facts.append(("Load of a replica", load))
            facts += [
                (text.limit_words(row), text.room_words(row, self.slo)) for row in room.limits
            ]
            facts.append(("If a replica is lost", text.loss_words(room, self.slo)))
        # A predictor that decides at once compares no profiles.
        if self.answer.alternatives or option.users_per_replica is not None:
            best = self.answer.alternatives[:1]
            facts.append(
                ("Next best", text.next_words(best[0]) if best else "no other GPU profile")
            )
        if self.others:
            answers = "; ".join(
                f"{other.predictor}: {deployment_cell(other.option)}" for other in self.others
            )
            facts.append(("Other predictors", answers))

        return [Facts(facts), *missing]

    def load_panel(self, metric: str) -> Panel:
        """Return a latency over the load of a replica, a curve per GPU profile, and its limit."""
        limit_ms, percentile = self.slo.limits[metric]
        lines = []
        drawn = [limit_ms]
        loads = []
        for profile_id, curve in self.curves.groupby("gpu_profile_id"):
            y, low, high = (limited(curve, self.slo, end)[metric] for end in ("", *ENDS))
            x = replica_load(curve, self.slo)
            ringed: list[int] = []
            if self.headroom and self.answer.option.gpu_profile_id == profile_id:
                is_there = curve["users"].to_numpy() == self.headroom.level_users
                ringed = np.flatnonzero(is_there).tolist()
            # Where an end is not known the interval stops at the latency itself.
            bottom, top = (np.where(np.isnan(end), y, end) for end in (low, high))
            lines.append(Curve(profile_id, x, y, bottom, top, ringed=ringed))
            # A wide interval would squeeze the curves: what lies beyond a factor of 2 is cut.
            drawn += [
                value for end in (y, low.clip(min=y / 2), high.clip(max=y * 2)) for value in end
            ]
            loads += x[np.isfinite(x)].tolist()

        sides = [0.9 * min(loads, default=1), 1.1 * max(loads, default=1)]
        label = f"limit {number(limit_ms)} ms"
        lines.append(Curve(label, sides, [limit_ms, limit_ms], is_reference=True))

        name = METRICS[metric]
        unit = "ms/token" if metric == "nttft" else "ms"
        low_ms = np.nanmin(drawn) / 1.3
        high_ms = np.nanmax(drawn) * 1.4

        levels = sorted(set(self.curves["users"])) if self.slo.users is not None else []
        ticks = levels if 0 < len(levels) <= _MAX_TICKS else None
        load = "Users" if self.slo.users is not None else "Requests a second"
        x_axis = Axis(
            f"{load} of a replica", True, ticks, ticks and [str(level) for level in ticks]
        )

        label = f"{PERCENTILE_PREFIX[percentile]} {name} ({unit})"
        return Panel("", x_axis, Axis(label, is_log=True, low=low_ms, high=high_ms), lines)


def slo_sections(tables: Tables, reports: Sequence[SLOReport]) -> tuple[list[Section], list[Row]]:
    """Return a section per report with a card per LLM, and the decisions for the JSON."""
    usd_by_profile = {row["gpu_profile_id"]: row["usd_per_hour"] for row in tables["gpu_profile"]}
    sections = []
    decisions = []
    for report in reports:
        curves = load_curves(tables, report.source, report.slo)
        simulated = simulated_llms(tables, report.source, report.slo.slo_id)
        by_llm: dict[str, list[StoredRecommendation]] = {}
        for answer in report.recommendations:
            if answer.llm_id not in simulated:
                by_llm.setdefault(answer.llm_id, []).append(answer)

        blocks: list[Block] = [Note(f"Limits: {slo_words(report.slo)}.")]
        if simulated:
            blocks.append(Note(f"Simulated, see Capacity below: {', '.join(sorted(simulated))}."))
        for llm_id, (answer, *others) in by_llm.items():
            is_of_answer = (curves["llm_id"] == llm_id) & (curves["predictor"] == answer.predictor)
            llm_curves = curves[is_of_answer]
            option = answer.option
            option_curve = llm_curves[llm_curves["gpu_profile_id"] == option.gpu_profile_id]
            headroom = None
            if len(option_curve) and option.replicas and option.usd_per_hour is not None:
                headroom = measure_headroom(
                    option_curve, report.slo, option.replicas, option.usd_per_hour
                )
            card = DeploymentCard(report.slo, answer, others, llm_curves, headroom)
            decisions.append(card.decision)
            what_if_id = f"what-if-{len(decisions)}"
            is_first = len(decisions) == 1
            blocks.append(
                card.section(report.heading, usd_by_profile, what_if_id, is_open=is_first)
            )
        sections.append(Section(report.heading, blocks))

    return sections, decisions
