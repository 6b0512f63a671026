"""Steps that only decode, compiled: most of all steps, so they take a loop of their own.

In such a step no request joins, ends, is preempted or given up. The numbers are those that `steps`
would compute, one step at a time, but nothing is looked up in the table of requests.
"""

import math

from sextant.simulate.compiled import compiled
from sextant.simulate.tables import take
from sextant.simulate.world import BIN_WIDTH, N_BINS, NONE, SHORTEST_S, World


@compiled
def bin_of(gap_s: float) -> int:
    """Return the bin in which a gap between tokens is counted."""
    return int(min(max(math.log(gap_s / SHORTEST_S) / BIN_WIDTH, 0.0), N_BINS - 1.0))


@compiled
def _next_event_s(w: World, r: int) -> float:
    """Return until when a replica only decodes, as far as its queue and its clients go."""
    s = w.replicas[r]
    if s.partial != NONE or s.n_decodes == 0:
        return -math.inf
    event_s = math.inf
    if s.oldest != NONE:
        event_s = w.requests[s.oldest].deadline_s
    if s.is_blocked:
        return event_s
    if s.preempted != NONE:
        return -math.inf
    if s.waiting != NONE:
        event_s = min(event_s, w.requests[s.waiting].arrival_s + w.request_s)
    return event_s


@compiled
def decode_only(w: World, r: int, until_s: float) -> None:
    """Make the plans of a replica that only decode, up to the first other one or a time."""
    s = w.replicas[r]
    until_s = min(until_s, _next_event_s(w, r))
    crossing, ends = w.crossing[r], w.ends[r]
    mask = ends.shape[0] - 1
    series, gaps, counted_from_s = w.series, w.gaps, s.counted_from_s
    n, lag, block_tokens, is_asynchronous = s.n_decodes, w.lag, w.block_tokens, w.lag == 2
    law = w.law
    fixed_ms, context_ms = law[0] + w.weights_ms[n] + law[2] * n, law[3]
    plan, plan_s, free_s, context, used = s.plan, s.plan_s, s.free_s, s.context, s.used
    busy_s, kv_block_s, steps, gap_sum_s = s.busy_s, s.kv_block_s, s.steps, 0.0
    low_s = high_s = 0.0
    bin_ = 0
    while plan_s < until_s:
        if ends[plan & mask].first != NONE or ends[(plan - lag) & mask].first != NONE:
            break
        new = crossing[plan % block_tokens]
        if new > w.n_blocks - used:
            break
        if new > 0:
            used += new
            take(w, r, new)
        context += n
        start_s = max(plan_s, free_s)
        end_s = start_s + 1e-3 * (fixed_ms + context_ms * context)
        gap_s, took_s = end_s - free_s, end_s - start_s
        free_s = end_s
        plan_s = start_s if is_asynchronous else end_s
        plan += 1
        steps += 1
        window = int(min(end_s / w.window_s, series.shape[0] - 1.0))
        series[window, 0] += took_s
        series[window, 1] += used * took_s
        series[window, 2] += n
        series[window, 3] += 1
        if start_s >= counted_from_s:
            busy_s += took_s
            kv_block_s += used * took_s
        if not low_s <= gap_s < high_s:
            bin_ = bin_of(gap_s)
            low_s = SHORTEST_S * math.exp(bin_ * BIN_WIDTH)
            high_s = SHORTEST_S * math.exp((bin_ + 1) * BIN_WIDTH)
        gaps[window, bin_] += s.n_counted
        gap_sum_s += gap_s
    s.n_gaps += s.n_counted * (steps - s.steps)
    s.gap_sum_s += s.n_counted * gap_sum_s
    s.plan, s.plan_s, s.free_s, s.context = plan, plan_s, free_s, context
    s.busy_s, s.kv_block_s, s.steps = busy_s, kv_block_s, steps
    s.most_blocks = max(s.most_blocks, used)
