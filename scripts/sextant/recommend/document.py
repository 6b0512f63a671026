"""A recommendation in words: blocks for a person, beside the JSON for a program."""

import math
from collections.abc import Sequence

from sextant.answer.certainty import (
    OPTION_HEADER,
    option_cells,
    options_table,
    price_sections,
)
from sextant.answer.drafting import speed_words
from sextant.answer.option import beaten_notes, split_beaten
from sextant.answer.variations import variations_sections
from sextant.answer.words import (
    answer_source_line,
    chance_words,
    chosen_words,
    deployment_words,
    headroom_lines,
    limits_words,
    loss_words,
    next_words,
    slo_line,
)
from sextant.ask.api_prices import api_section
from sextant.decide.decision import FAIR, SAFE
from sextant.decide.most_replicas import MOST_REPLICAS
from sextant.facts.gpu import GIB
from sextant.facts.slo import METRICS
from sextant.pages.blocks import Beside, Block, Document, Facts, Headline, Note, Section, Table
from sextant.pages.words import chance, number, odds, per_second, plural, usd_words
from sextant.predict.predictor import MEASURED
from sextant.recommend.key_figures import key_figures, limits_chart
from sextant.recommend.recommendation import (
    EnergyAnswer,
    FarMeasurement,
    Findings,
    MeasuredOutcome,
    MeasuredRecommendation,
    NearMeasurement,
    PredictedOutcome,
    PredictedRecommendation,
    ProfileOutcome,
    Recommendation,
    UsersServed,
)

_N_CONTRADICTIONS = 3
"""Measurements far from the law that are listed one by one."""


def recommendation_document(answer: Recommendation, *, has_widget: bool = False) -> Document:
    """Return a recommendation for a person; with a widget its page answers again when changed."""
    warnings = answer.all_warnings
    execution = None
    if isinstance(answer, PredictedRecommendation):
        warnings = [*_cautions(answer), *warnings, *_contradiction_lines(answer)]
        lines = _load_lines(answer)
        reasons = _reasons(answer)
        execution = answer.execution
    else:
        assert isinstance(answer, MeasuredRecommendation)
        lines = headroom_lines(answer.headroom, answer.slo) if answer.headroom else []
        if (miss := answer.nearest_miss) is not None:
            limits = limits_words(answer.slo.limits)
            lines.append(f"Nearest: {chance_words(miss)}, to meet {limits}.")
        if answer.next_best:
            lines.append(f"Next best: {next_words(answer.next_best)}.")
        reasons = [Section("GPU profiles", [_profile_table(answer.alternatives)])]

    llm = answer.llm
    bits = f", quantized to {llm.weight_bits:.3g} bits" if llm.weight_bits else ""
    llm_line = (
        f"{llm.llm_type}, {llm.n_parameters / 1e9:.2f} billion parameters, "
        f"{llm.weight_bytes / GIB:.1f} GiB of weights ({llm.dtype}{bits}), {llm.attention}, "
        f"{llm.kv_bytes_per_token / 1024:.0f} KiB of KV cache per token "
        f"({llm.kv_dtype or llm.dtype})"
    )
    widget = answer.widget() if has_widget else None
    charts = limits_chart(answer) if isinstance(answer, PredictedRecommendation) else []
    blocks: list[Block] = [
        Headline(headline(answer)),
        key_figures(answer),
        *(Note(line, "warning") for line in warnings),
        Beside([Facts(lines), *charts]),
        *([widget] if widget else []),
        *variations_sections(answer.variations),
        *api_section(answer.api),
        *reasons,
        *(Note(line) for line in answer.replica_lines),
        Note(answer_source_line(answer, execution)),
        Section("The LLM", [Facts([llm_line])], is_detail=True),
    ]
    title = f"{answer.llm_id}: recommendation"
    return Document(
        title, blocks, answer.to_dict(), slo_line(answer.slo), kind="Sextant: what to rent"
    )


def headline(answer: Recommendation) -> str:
    """Return the recommendation in one line."""
    how = "measured" if answer.basis == MEASURED else f"predicted by {answer.basis}"
    limits = answer.slo.limits
    if not answer.has_option:
        none = f"no GPU profile meets {limits_words(limits)}"
        if answer.risk is not None:
            none += f" with probability {1 - answer.risk:.10g} or more"
        elif isinstance(answer, PredictedRecommendation) or _is_unsure(answer):
            none = f"no option is likely to meet {limits_words(limits)}"
        return f"{answer.llm_id}: {none} ({how})"
    text = f"{answer.llm_id}: {chosen_words(answer)}"
    if (probability := answer.chosen.probability_met) is not None:
        text += f"; meets {limits_words(limits)} with probability {chance(probability)}"
    return f"{text} ({how})"


def _is_unsure(answer: Recommendation) -> bool:
    return isinstance(answer, MeasuredRecommendation) and answer.nearest_miss is not None


def _cautions(answer: PredictedRecommendation) -> list[str]:
    """Return how likely an unlikely option is and what a safe one costs; nothing of others.

    Where nothing is recommended: what comes nearest, which limit it breaks, and what would mend it.
    """
    findings = answer.findings
    if (miss := findings.nearest_miss) is not None:
        if math.isinf(miss.fair_factor):
            return [
                f"Nearest: {chance_words(miss.option)}. Its queue grows without end, so looser "
                f"limits are no help; up to {MOST_REPLICAS:,} replicas are tried. Try faster GPU "
                "profiles (--gpu-profiles), or a lower load."
            ]
        metric = miss.binding_limit
        limit = answer.slo.limits[metric]
        safe = f"with {miss.safe_factor:.3g} times"
        if math.isinf(miss.safe_factor):
            safe = "with no factor"
        users = ""
        if miss.option.users_per_replica is not None:
            users = f" with {plural(miss.option.users_per_replica, 'user')} a replica"
        median_ms = miss.latencies_ms[metric]
        breaks = "breaks its limit"
        if median_ms <= limit.limit_ms:
            breaks = "keeps its limit in too few draws"
        return [
            f"Nearest: {chance_words(miss.option)}. "
            f"{METRICS[metric]} {breaks}: {number(median_ms)} ms{users}, "
            f"where {limit.limit_ms:g} ms at p{limit.percentile} is asked for.",
            f"With {limits_words(answer.slo.limits, 'a limit')} {miss.fair_factor:.3g} times as "
            f"high its probability is {FAIR:g}, {safe} {SAFE:g}. Raise "
            "the limit, try faster GPU profiles (--gpu-profiles), or quantize the LLM (--dtype).",
        ]

    probability = answer.chosen.probability_met
    if probability is None or probability >= SAFE:
        return []
    option = f"--risk {1 - SAFE:.1g}"
    if answer.decision != "utility":
        option = f"--decision utility {option}"
    safe = f"no option reaches {SAFE:g}: try other GPU profiles"
    if findings.safest is not None:
        safe = f"{SAFE:g} takes {deployment_words(findings.safest)} ({option})"
    return [f"That is {odds(probability)}; {safe}"]


def _contradiction_lines(answer: PredictedRecommendation) -> list[str]:
    """Return the measurements far from the law, the farthest first."""
    nttft_percentile, itl_percentile = answer.slo.percentiles
    lines = []
    for far in answer.contradictions[:_N_CONTRADICTIONS]:
        row = far.contradiction
        percentile = itl_percentile
        times = 1.0
        if row.latency == "nttft" and answer.serving is not None:
            percentile = nttft_percentile
            times = answer.serving.requests.inputs.mean
        lines.append(
            f"{_measurement_words(far, percentile, times * row.measured_ms)} on "
            f"{row.gpu_profile_id} {far.load_words} is far from what the law says "
            f"({number(times * row.predicted_ms)} ms, 90% interval {number(times * row.low_ms)} to "
            f"{number(times * row.high_ms)}): near this load the measurement outweighs the "
            "law; at other loads, and on other GPU profiles, the intervals are wider."
        )
    if (more := len(answer.contradictions) - _N_CONTRADICTIONS) > 0:
        lines.append(f"{plural(more, 'more measurement')} like that.")
    return lines


def _measurement_words(far: FarMeasurement, percentile: int, value_ms: float) -> str:
    """Return what was measured, or which percentile is estimated and from what."""
    name = METRICS[far.metric]
    if far.basis is None or far.basis_ms is None:
        return f"Measured {name} of {number(value_ms)} ms"
    return (
        f"Estimated p{percentile} {name} of {number(value_ms)} ms, from a measured {far.basis} of "
        f"{number(far.basis_ms)} ms,"
    )


def _load_lines(answer: PredictedRecommendation) -> list[str]:
    """Return what is expected of a replica, which limit is nearest, and what that costs."""
    slo = answer.slo
    findings = answer.findings
    replica = findings.latency
    headroom = answer.headroom
    cost = findings.cost
    if replica is None or headroom is None or cost is None:
        return []

    intervals = [
        f"{METRICS[metric]} {number(replica.latencies_ms[metric].median)} ms (90% interval "
        f"{replica.latencies_ms[metric].end_words()}, "
        f"limit {limit.limit_ms:g})"
        for metric, limit in slo.limits.items()
    ]
    shown = plural(replica.users, "user")
    if slo.users is None:
        shown = f"{per_second(replica.load)}, about {shown} at once"
    limits = limits_words(slo.limits)
    serves = "breaks a limit at any rate in half of the draws"
    if replica.load_median:
        serves = f"meets {limits} up to {per_second(replica.load_median)} in half of the draws"
    if replica.users_served is not None:
        most = plural(replica.users_served.median, "user")
        interval = _users_interval(replica.users_served, replica.most_users_tried)
        serves = f"meets {limits} with {most} (90% interval {interval})"
    nearest = ""
    if len(slo.limits) > 1:
        nearest = f"{METRICS[replica.binding_limit]} comes nearest to its limit. "
    lines = [
        f"A replica gets {shown}: {'; '.join(intervals)}.",
        f"{nearest}A replica {serves}.",
    ]
    if replica.checked_at_users not in (None, replica.users):
        lines.append(
            f"The probability is for {replica.checked_at_users} users, the nearest load above that "
            "was computed."
        )

    use = "" if cost.utilisation is None else f" at {cost.utilisation:.0%} utilisation"
    split = "the time of prefill and decode" if cost.split == "time" else "tokens"
    lines += [
        f"{cost.usd_per_million_input_tokens:.3g} USD per million input tokens, "
        f"{cost.usd_per_million_output_tokens:.3g} per million output tokens (split by {split}), "
        f"at {per_second(cost.requests_per_s)}{use}.",
        f"A month (730 h) costs {number(headroom.usd_per_month)} USD. If one replica is lost, "
        f"{loss_words(headroom, slo)}.",
    ]
    return lines + ([energy_line(findings.energy)] if findings.energy else [])


def _users_interval(users: UsersServed, most_users_tried: int | None) -> str:
    end = ", the most that was tried" if users.hi == most_users_tried else ""
    return f"{users.lo} to {users.hi}{end}"


def _reasons(answer: PredictedRecommendation) -> list[Block]:
    """Return the options by price, the GPU profiles, what the answer rests on, what changes it."""
    findings = answer.findings
    profiles, beaten = split_beaten(answer.alternatives)
    offered = [outcome.option for outcome in answer.alternatives]
    unbeaten, _ = split_beaten([*offered, *findings.unmeasured])
    on_unmeasured = [option for option in unbeaten if option in findings.unmeasured]
    ways = [[*option_cells(way.option), way.way, way.risk] for way in findings.ways]
    way_table = Table(
        [*OPTION_HEADER, "How", "Risk"], ways, {0, 1, 2, 3, 4}, has_header_in_text=False
    )
    evidence = [*map(_evidence_line, findings.evidence)]
    if answer.has_option and not evidence:
        evidence = [f"nothing was measured on {answer.chosen.gpu_profile_id}"]
    notes = beaten_notes(beaten, answer.risk)
    by_price = [
        *price_sections(findings.frontier, answer.chosen, findings.certainty),
        Section("GPU profiles", [_profile_table(profiles), *notes]),
    ]
    sections = [
        Section("On GPUs that nobody measured", [options_table(on_unmeasured)]),
        Section("Other ways to serve it", [way_table]),
        Section("Speculative decoding", [_drafting_table(findings)]),
        Section("GPU profiles that others beat", [_profile_table(beaten)], is_detail=True),
        Section("Nearest measurements", [Facts(evidence)]),
        Section("What would change the answer", [Facts(_change_lines(answer))]),
    ]
    told = [
        section
        for section in sections
        if any(not isinstance(block, Table) or block.rows for block in section.blocks)
    ]
    return [Beside(by_price), *told]


def _evidence_line(near: NearMeasurement) -> str:
    alike = "" if near.is_executed_alike else f", executed otherwise ({near.execution})"
    most = "not even the fewest users that were tried meet these limits"
    if near.users_per_replica:
        users = plural(near.users_per_replica, "user")
        most = f"these limits hold with up to {users}"
        if near.users_per_replica == near.most_users_tried:
            most = f"these limits hold with {users}, the most that were tried"
    engine = " ".join(filter(None, [near.engine, near.engine_version]))
    where = f"{near.gpu_profile_id}{f', {engine}' if engine else ''}"
    return (
        f"{near.llm_id} in {near.precision} ({near.weights_gib:.1f} GiB of weights"
        f"{alike}) on {where}: {most}, with {near.input_tokens:.0f} input and "
        f"{near.output_tokens:.0f} output tokens"
    )


def _change_lines(answer: PredictedRecommendation) -> list[str]:
    lines = []
    for change in answer.findings.sensitivity:
        option = change.option
        words = chance_words(option) if option.gpu_profile_id else "no option"
        lines.append(f"{change.name}: {words}")
    probe = answer.findings.best_probe
    more = f"one more measurement, on {probe}," if answer.has_probe else f"a measurement on {probe}"
    return [*lines, f"{more} would tell most (--probe)"]


def _drafting_table(findings: Findings) -> Table:
    header = ["Draft tokens", "Tokens a step", "Speed of an answer", "Probability of a gain"]
    gains = findings.drafting
    rows = [
        [
            gain.draft_tokens,
            f"{gain.accepted_length:.2f}",
            speed_words(gain),
            chance(gain.probability_gain),
        ]
        for gain in gains
    ]
    note = ""
    if gains:
        note = f"{gains[0].method} on {gains[0].gpu_profile_id}, for the users of a replica"
    return Table(header, rows, {0, 1, 2, 3}, note=note)


def _profile_table(outcomes: Sequence[ProfileOutcome]) -> Table:
    header = ["GPU profile", "Price", "Probability", "Deployment, or why not"]
    return Table(header, [*map(profile_cells, outcomes)], {0, 1, 2, 3}, has_header_in_text=False)


def profile_cells(outcome: ProfileOutcome) -> list[str]:
    """Return the cells of a GPU profile: its name, its price and probability, or the reason.

    A predicted one has a replica's users with their interval, a measured one those of eq. 1-3.
    """
    name = outcome.gpu_profile_id
    if isinstance(outcome, PredictedOutcome) and not outcome.is_gpu_measured:
        name += " (GPU never measured)"
    probability = outcome.probability_met
    likely = "" if probability is None else chance(probability)
    misses = outcome.misses
    if outcome.status == "too_slow" and misses.limit_ratio is not None:
        limit = METRICS[misses.worst_metric]
        users = f" with {plural(misses.fewest_users, 'user')}" if misses.fewest_users else ""
        miss = f"{limit} is {misses.limit_ratio:.3g} times its limit{users}"
        if misses.fewest_users and misses.limit_ratio <= 1:
            miss = f"unlikely to meet {limit} and the other limits at once, even{users}"
        return [name, "too slow", likely, miss]
    if outcome.status not in ("meets", "unsure"):
        status = outcome.status.replace("does_not_fit", "ruled out")
        return [name, status, "", outcome.reason or ""]
    state = "" if outcome.status == "meets" else "unsure: "
    plan = f"{state}{plural(outcome.option.replicas or 0, 'replica')}"
    if isinstance(outcome, PredictedOutcome):
        plan += _predicted_plan(outcome)
    elif isinstance(outcome, MeasuredOutcome) and outcome.rates is not None:
        plan += f" of up to {per_second(outcome.rates.served_rps or 0.0)}"
        plan += " (no more were tried)" if outcome.rates.missed_rps is None else ""
    else:
        most_users = outcome.option.users_per_replica or 0
        plan += f" of up to {plural(most_users, 'user')}"
        if (outcome.option.replicas or 0) > 1 and most_users == outcome.most_users_tried:
            plan += " (no more were tried)"
    return [name, usd_words(outcome.usd_per_hour), likely, plan]


def _predicted_plan(outcome: PredictedOutcome) -> str:
    plan = ""
    if outcome.is_simulated:
        low, high = (
            "more than are tried" if count is None else str(int(count))
            for count in (outcome.replicas_lo, outcome.replicas_hi)
        )
        plan = f" (90% interval {low} to {high})" if low != high else ""
    elif outcome.users_served is not None:
        interval = _users_interval(outcome.users_served, outcome.most_users_tried)
        plan = f", serves {plural(outcome.users_served.median, 'user')} ({interval})"
    if outcome.energy.energy_j_per_token is not None:
        plan += f", {number(outcome.energy.energy_j_per_token)} J per output token"
    return plan


def energy_line(answer: EnergyAnswer) -> str:
    """Return the energy of a token in one line."""
    return (
        f"{number(answer.energy_j_per_token)} J per output token (90% interval "
        f"{number(answer.energy_lo_j_per_token)} to {number(answer.energy_hi_j_per_token)}), "
        f"{number(answer.wh_per_million_output_tokens)} Wh per million, of the devices alone "
        f"under this load; from {plural(answer.n_llms, 'LLM')} of "
        f"{' + '.join(answer.sources)}."
    )
