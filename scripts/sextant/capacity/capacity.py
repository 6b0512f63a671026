"""How many replicas of which GPU profile meet an SLO under given traffic, by simulation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sextant.answer.budget import Budget, BudgetAnswer, BudgetOutcome, VariableLoad, spend_budget
from sextant.answer.certainty import (
    Cause,
    find_cause,
    list_frontier,
    price_certainty,
    unknowns_of_laws,
)
from sextant.answer.option import Option
from sextant.answer.pools import PoolsOption, pools_note, size_pools
from sextant.answer.variations import Variation
from sextant.ask.api_prices import ApiComparison, Billed, OwnDeployment, compare_with_api
from sextant.ask.laws import CaseLaws, candidate_laws, find_laws
from sextant.ask.traffic import TraceTraffic, demand_notes
from sextant.capacity.answer import (
    CapacityAnswer,
    CapacityFindings,
    CapacityOutcome,
    TrafficTimeline,
    WindowsSummary,
)
from sextant.capacity.changes import after_failure, after_growth, size_split, with_neighbours
from sextant.capacity.question import CapacityQuestion, check_capacity
from sextant.capacity.schedule import find_schedule, with_drafts
from sextant.decide.latency_surface import LatencySurface
from sextant.decide.replica_sizing import Days, Sizing, borne_of, replica_loads, size_profiles
from sextant.decide.replicas import SimulatedReplica, simulated_replica
from sextant.deploy.settings import ReplicaSettings, settings_of
from sextant.facts.gpu import GPUProfile
from sextant.facts.startup import Startup
from sextant.pages.words import percent, plural
from sextant.workload.requests import RequestStream, steady_like


@dataclass(frozen=True)
class _Sized:
    """A question with the laws of a step, and what each GPU profile needs."""

    capacity_question: CapacityQuestion
    laws: CaseLaws
    servers: dict[str, SimulatedReplica]
    surface: LatencySurface
    sizings: dict[str, Sizing]

    @classmethod
    def of(cls, capacity_question: CapacityQuestion) -> "_Sized":
        """Size each GPU profile that can serve the LLM."""
        question = capacity_question.question
        laws = find_laws(question, capacity_question.settings, capacity_question.n_draws)
        servers = {
            profile_id: simulated_replica(
                laws.case.gpu_profiles[profile_id],
                replica_laws,
                question.prefix_hit_rate,
                capacity_question.router,
            )
            for profile_id, replica_laws in laws.servers.items()
        }
        requests = steady_like(capacity_question.sizing_traffic, question.seed)
        surface = laws.candidates.surface(requests, question.prefix_hit_rate)
        sizings = _size(capacity_question, servers, surface)
        return cls(capacity_question, laws, servers, surface, sizings)

    @property
    def requests(self) -> RequestStream:
        """What arrives, in the likeliest draw."""
        return self.capacity_question.traffic.drawn(0)

    @property
    def startup(self) -> Startup:
        """How long a replica of the LLM takes to start."""
        return self.capacity_question.terms.startup(self.laws.case.llm)

    def settings_on(self, gpu_profile: GPUProfile) -> ReplicaSettings:
        """Return what is assumed of a replica on a GPU profile."""
        settings = self.capacity_question.settings
        return settings_of(self.laws.case, gpu_profile, settings, self.startup)

    def ranked_outcomes(self) -> list[CapacityOutcome]:
        """Return one outcome per GPU profile: the cheaper, the likelier, fewer devices first."""
        case = self.laws.case
        outcomes = [
            CapacityOutcome.of(
                sizing,
                self.laws.servers[profile_id].scheduler.kv_tokens,
                is_gpu_measured=case.is_gpu_measured(profile_id),
            )
            for profile_id, sizing in self.sizings.items()
        ]
        outcomes += [
            CapacityOutcome(
                gpu_profile_id=profile_id,
                status="does_not_fit",
                is_gpu_measured=case.is_gpu_measured(profile_id),
                reason=reason,
            )
            for profile_id, reason in self.laws.excluded.items()
        ]

        def rank(outcome: CapacityOutcome) -> tuple[bool, float, float, int, str]:
            n_gpus = case.gpu_profiles[outcome.gpu_profile_id].n_gpus
            return (
                outcome.replicas is None,
                outcome.usd_per_hour or 0.0,
                -(outcome.probability_met or 0.0),
                (outcome.replicas or 0) * n_gpus,
                outcome.gpu_profile_id,
            )

        return sorted(outcomes, key=rank)

    def frontier(self) -> list[Option]:
        """Return the options that no cheaper one matches in probability, cheapest first."""
        capacity_question = self.capacity_question
        if not capacity_question.n_draws:
            return []
        sized = sorted(self.sizings.values(), key=lambda sizing: sizing.server.profile.n_gpus)
        options = [
            Option(
                sizing.server.profile.gpu_profile_id,
                replicas,
                None,
                sizing.server.usd_per_hour(replicas),
                sizing.probability(replicas),
            )
            for sizing in sized
            for replicas in sizing.counts(capacity_question.terms.least)
        ]
        return list_frontier(options, capacity_question.risk)

    def cause_of(self, option: Option) -> Cause | None:
        """Return the unknown that most of the differences in what a GPU profile needs come from."""
        profile_id = str(option.gpu_profile_id)
        sizing = self.sizings[profile_id]
        replica_rps = self.requests.rate_rps / (option.replicas or 1)
        laws = sizing.server.laws
        unknowns = unknowns_of_laws(laws, self.surface.request, replica_rps)
        return find_cause(profile_id, sizing.loads, unknowns)

    def at_prices(self, gpu_profiles: Mapping[str, GPUProfile]) -> "_Sized":
        """Return the same replicas at the prices of these GPU profiles."""
        sizings = {
            name: replace(sizing, server=replace(sizing.server, profile=gpu_profiles[name]))
            for name, sizing in self.sizings.items()
        }
        return replace(self, sizings=sizings)

    def vary(self, chosen: Option) -> list[Variation]:
        """Return the option of each variant that is asked about.

        What is needed does not depend on prices: each load and its limits are sized once.
        """
        sized_by_slo = {self.capacity_question.question.slo: self}
        variations = []
        for variant in self.capacity_question.variants:
            varied = self.capacity_question.varied(variant)
            priced = variant.priced(self.laws.case.gpu_profiles)
            slo = varied.question.slo
            if slo not in sized_by_slo:
                sizings = _size(varied, self.servers, self.surface)
                sized_by_slo[slo] = replace(self, capacity_question=varied, sizings=sizings)
            outcome = sized_by_slo[slo].at_prices(priced).ranked_outcomes()[0]
            option = outcome.option if outcome.replicas else Option()
            variations.append(Variation(variant.values, option, chosen))
        return variations

    def findings(self, sizing: Sizing) -> CapacityFindings:
        """Return the results of the chosen replicas, and what would change them.

        Law and traffic are those of one draw: the one that needs these replicas.
        """
        capacity_question = self.capacity_question
        target = capacity_question.target
        requests = capacity_question.traffic.drawn(sizing.day)
        sizing_requests = capacity_question.sizing_traffic.drawn(sizing.day)

        fixed = sizing.server.judge(requests, sizing.count, target, sizing.draw)
        results = find_schedule(sizing, requests, target, capacity_question.terms, self.startup)
        schedule = results.schedule
        findings = CapacityFindings(
            fixed=WindowsSummary.of(fixed, target, requests.part),
            neighbours=with_neighbours(
                sizing, sizing_requests, target, None if capacity_question.steady else fixed
            ),
            failure=after_failure(sizing, requests, target, self.startup.median_s),
            growth=after_growth(sizing, capacity_question.traffic, target),
            schedule=schedule,
            timeline=TrafficTimeline.of(
                requests, sizing.count, schedule, fixed, results.judged, target.window_s
            ),
        )
        if capacity_question.has_policy:
            from sextant.capacity.scaling import compare_policies  # few questions have one

            llm_id = self.laws.case.llm_id
            comparison = compare_policies(llm_id, sizing, capacity_question, self.startup, findings)
            findings = replace(findings, scaling=comparison)
        if capacity_question.split_tokens is not None:
            split = size_split(
                self.servers,
                capacity_question.traffic,
                capacity_question.split_tokens,
                target,
                1 - capacity_question.risk,
                self.surface,
            )
            findings = replace(findings, split=split)
        return findings

    def pools(self) -> PoolsOption | None:
        """Return prefill and decode on separate replicas; None: no numbers are likely enough."""
        capacity_question = self.capacity_question
        return size_pools(
            self.laws.case,
            lambda pool_case: (
                candidate_laws(
                    pool_case,
                    capacity_question.settings,
                    capacity_question.n_draws,
                    self.laws.model,
                ).servers
            ),
            capacity_question.sizing_traffic,
            capacity_question.target,
            1 - capacity_question.risk,
            self.surface,
        )

    def api(self, sizing: Sizing, findings: CapacityFindings) -> ApiComparison | None:
        """Return the chosen replicas beside an API's prices; None: not asked for, or not known."""
        question = self.capacity_question.question
        if question.api_prices is None:
            return None
        requests = self.requests
        # Within one slot, and between the busiest windows of a long trace, nothing is saved.
        is_followed = len(findings.schedule.replicas) > 1 and requests.part is None
        deployment = OwnDeployment(
            sizing.server.profile,
            sizing.count,
            sizing.rate_rps and sizing.count * sizing.rate_rps,
            sizing.probability,
            findings.schedule.saved if is_followed else 0.0,
        )
        billed = Billed.of(requests, question.prefix_hit_rate)
        return compare_with_api(question.api_prices, self.laws.case.llm_id, billed, deployment)

    def budget_outcomes(self, budget: Budget) -> list[BudgetOutcome]:
        """Return what a budget serves on each GPU profile, of this traffic times a factor."""
        capacity_question = self.capacity_question
        traffic = capacity_question.sizing_traffic
        target = capacity_question.target
        requests = traffic.drawn(0)
        busiest_rps = requests.rate_rps
        if target.window_s is not None:
            busiest_rps = requests.busiest(target.window_s)[1] / target.window_s
        if isinstance(traffic, TraceTraffic):
            traffic = traffic.peak()

        def load_of(sizing: Sizing) -> VariableLoad:
            server = sizing.server
            borne = borne_of(server, traffic, target, self.surface)

            def loads_at(factor: float) -> np.ndarray:
                days = Days(traffic.scaled(factor), target.window_s)
                return replica_loads(server, days, target, capacity_question.risk, borne)

            draws_rps = borne.at(requests.rate_rps)
            decisive_rps = float(np.quantile(draws_rps, capacity_question.risk))
            return VariableLoad(loads_at, max(decisive_rps, 1e-3) / busiest_rps)

        never = {"too_slow": "a request alone breaks a limit", "refused": "requests are refused"}
        excluded = {
            name: never[sizing.status]
            for name, sizing in self.sizings.items()
            if sizing.status in never
        }
        loads = {
            name: load_of(sizing) for name, sizing in self.sizings.items() if name not in excluded
        }
        reasons = {**self.laws.excluded, **excluded}
        return spend_budget(budget, self.laws.case, requests.rate_rps, loads, reasons)

    def warnings(self) -> list[str]:
        """Return what to know of the traffic, and of what was not simulated."""
        capacity_question = self.capacity_question
        requests = self.requests
        has_caching: bool | None = capacity_question.settings.has_prefix_caching
        if capacity_question.question.prefix_hit_rate:
            has_caching = None
        warnings = demand_notes(requests, has_caching)
        if n_failed := requests.origin.n_failed:
            n_ok = requests.origin.n_ok
            warnings.append(
                f"{plural(n_failed, 'request')} of {requests.name} "
                f"({percent(n_failed / (n_failed + n_ok))}) failed there and "
                "are left out: their lengths are not known. "
                f"`--traffic {requests.origin.factor * (1 + n_failed / n_ok):.4g}` counts them."
            )
        window_s = capacity_question.target.window_s
        if window_s and requests.duration_s < 2 * window_s:
            warnings.append(
                f"The traffic lasts {requests.duration_s:.0f} s, which is one window: the answer "
                "does not hold for other hours."
            )
        if not capacity_question.n_draws:
            warnings.append(
                "The answer is that of the best estimate alone (--draws 0): it has no probability."
            )
        longest = self.laws.longest_tokens
        n_too_long = int((requests.input_tokens + requests.output_tokens > longest).sum())
        if n_too_long:
            warnings.append(
                f"{n_too_long:,} of {requests.n:,} requests have more than {longest:,} tokens "
                "(--max-model-len, or the LLM's context): every replica refuses them."
            )
        return warnings


def _size(
    capacity_question: CapacityQuestion,
    servers: Mapping[str, SimulatedReplica],
    surface: LatencySurface,
) -> dict[str, Sizing]:
    """Return what each GPU profile needs for a question."""
    return size_profiles(
        servers,
        capacity_question.sizing_traffic,
        capacity_question.target,
        1 - capacity_question.risk,
        surface,
        capacity_question.terms.least,
    )


def answer_capacity(
    capacity_question: CapacityQuestion, notes: Sequence[str] = ()
) -> CapacityAnswer:
    """Return the fewest replicas on each GPU profile that meet an SLO under this traffic.

    Args:
        capacity_question: the question.
        notes: come before the answer's own warnings.

    Raises:
        InputError: an option is wrong, or the measurements cannot answer.
    """
    check_capacity(capacity_question)
    sized = _Sized.of(capacity_question)
    outcomes = sized.ranked_outcomes()
    if not outcomes[0].replicas:
        return _answer(sized, outcomes, None, notes)

    sizing = sized.sizings[outcomes[0].gpu_profile_id]
    findings = sized.findings(sizing)
    question = capacity_question.question
    if question.speculative:
        schedule = with_drafts(findings.schedule, sizing, sized.requests, sized.laws)
        best_draft = schedule.drafting.draft_tokens if schedule.drafting else 0
        if question.draft_tokens is None and best_draft not in (0, 1):
            longer = replace(question, draft_tokens=best_draft)
            return answer_capacity(replace(capacity_question, question=longer), notes)
        findings = replace(findings, schedule=schedule)
    return _answer(sized, outcomes, findings, notes)


def answer_budget(
    capacity_question: CapacityQuestion, usd_per_month: float, notes: Sequence[str] = ()
) -> BudgetAnswer:
    """Return how much of this traffic a budget serves, on each GPU profile.

    Args:
        capacity_question: the question; its traffic counts as 1.
        usd_per_month: the budget.
        notes: come before the answer's own warnings.

    Raises:
        InputError: the budget buys no replica, or `answer_capacity` would raise it.
    """
    check_capacity(capacity_question)
    budget = Budget(usd_per_month, 1 - capacity_question.risk)
    sized = _Sized.of(capacity_question)
    outcomes = sized.budget_outcomes(budget)
    case = sized.laws.case
    return BudgetAnswer(
        llm_id=case.llm_id,
        basis="simulated",
        chosen=outcomes[0].option,
        alternatives=outcomes,
        slo=capacity_question.question.slo,
        budget=budget,
        traffic=sized.requests.name,
        has_traffic=True,
        risk=capacity_question.risk,
        source=case.source,
        gpu_profiles=case.gpu_profiles.values(),
        settings_on=sized.settings_on,
        warnings=[*case.failure_notes, *notes, *sized.laws.warnings, *sized.warnings()],
        serving=case.serving,
    )


def _answer(
    sized: _Sized,
    outcomes: Sequence[CapacityOutcome],
    findings: CapacityFindings | None,
    notes: Sequence[str],
) -> CapacityAnswer:
    """Return the answer, with separate pools and an API beside it where these are asked about."""
    capacity_question = sized.capacity_question
    question = capacity_question.question
    case = sized.laws.case
    requests = sized.requests
    chosen = outcomes[0].option

    pools = None
    if findings is not None and capacity_question.is_disaggregated:
        pools = sized.pools()
        notes = [pools_note(pools, chosen), *notes]
    api = None
    if findings is not None:
        api = sized.api(sized.sizings[outcomes[0].gpu_profile_id], findings)

    frontier = sized.frontier()
    return CapacityAnswer(
        llm_id=case.llm_id,
        basis="simulated",
        chosen=chosen,
        alternatives=outcomes,
        frontier=frontier,
        certainty=price_certainty(frontier, sized.cause_of),
        slo=question.slo,
        target=capacity_question.target,
        requests=requests,
        risk=capacity_question.risk,
        source=case.source,
        gpu_profiles=case.gpu_profiles.values(),
        settings_on=sized.settings_on,
        warnings=[*case.failure_notes, *notes, *sized.laws.warnings, *sized.warnings()],
        serving=case.serving,
        findings=findings,
        are_pools_asked=capacity_question.is_disaggregated,
        pools=pools,
        api=api,
        variations=sized.vary(chosen),
    )
