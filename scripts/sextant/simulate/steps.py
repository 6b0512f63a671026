"""The simulation, compiled: what a step computes, by vLLM's rules and those by which SGLang and
TensorRT-LLM differ (`Scheduler`), in O(1) a step.

`route` and `run_closed` send requests to replicas, `advance` makes a replica's plans, and
`decode_only` those that only decode: most of all, so they take a loop of their own, with the
numbers of the other steps. No request joins, ends, is preempted or given up in them.
"""

import math

import numpy as np

from sextant.simulate import tables
from sextant.simulate.simulation import BIN_WIDTH, N_BINS, OK, PENDING, SHORTEST_S, TIMEOUT
from sextant.simulate.tables import World, compiled
from sextant.workload.requests import NONE

ROUND_ROBIN, LEAST_REQUESTS, PREFIX = range(3)
"""In the order of `Router`."""
_OF_PREFIX, _OF_QUEUE, _OF_CACHE = 3.0, 2.0, 2.0
"""Weights of llm-d's default profile: the share of the prompt that is cached, the shortest queue,
and memory that is not in use."""
_TIE = 1e-9


@compiled
def bin_of(gap_s: float) -> int:
    """Return the bin in which a gap between tokens is counted."""
    return int(min(max(math.log(gap_s / SHORTEST_S) / BIN_WIDTH, 0.0), N_BINS - 1.0))


@compiled
def window_of(w: World, now_s: float) -> int:
    """Return the window of a time."""
    # Limited before it is a whole number: the time of an absurd law would overflow.
    return int(min(now_s / w.window_s, w.gaps.shape[0] - 1.0))


@compiled
def decode_only(w: World, r: int, until_s: float) -> None:
    """Make the plans of a replica that only decode, up to the first other one or a time."""
    s = w.replicas[r]
    if (
        s.partial != NONE
        or s.n_decodes == 0
        or s.n_paused > 0
        or (s.preempted != NONE and not s.is_blocked)
    ):
        return
    # No client gives up before, and nobody joins.
    if s.oldest != NONE:
        until_s = min(until_s, w.requests[s.oldest].deadline_s)
    if s.waiting != NONE and not s.is_blocked:
        until_s = min(until_s, w.requests[s.waiting].arrival_s + w.request_s)
    crossing, ends = w.crossing[r], w.ends[r]
    mask = ends.shape[0] - 1
    counted_from_s = s.counted_from_s
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
            tables.take(w, r, new)
        context += n
        start_s = max(plan_s, free_s)
        end_s = start_s + 1e-3 * (fixed_ms + context_ms * context)
        gap_s, took_s = end_s - free_s, end_s - start_s
        free_s = end_s
        plan_s = start_s if is_asynchronous else end_s
        plan += 1
        steps += 1
        if start_s >= counted_from_s:
            busy_s += took_s
            kv_block_s += used * took_s
        if not low_s <= gap_s < high_s:
            bin_ = bin_of(gap_s)
            low_s = SHORTEST_S * math.exp(bin_ * BIN_WIDTH)
            high_s = SHORTEST_S * math.exp((bin_ + 1) * BIN_WIDTH)
        w.gaps[window_of(w, end_s), bin_] += s.n_counted
        gap_sum_s += gap_s
    s.n_gaps += s.n_counted * (steps - s.steps)
    s.gap_sum_s += s.n_counted * gap_sum_s
    s.plan, s.plan_s, s.free_s, s.context = plan, plan_s, free_s, context
    s.busy_s, s.kv_block_s, s.steps = busy_s, kv_block_s, steps
    s.most_blocks = max(s.most_blocks, used)


@compiled
def advance(w: World, r: int, until_s: float) -> None:
    """Make all plans of a replica before a time."""
    s = w.replicas[r]
    while True:
        decode_only(w, r, until_s)
        now_s = s.plan_s
        if s.n_running == 0:
            i = tables.first_waiting(w, r)
            if i == NONE:
                return
            now_s = max(now_s, w.requests[i].arrival_s + w.request_s)
        if now_s >= until_s:
            return
        _plan(w, r, now_s)


@compiled
def _plan(w: World, r: int, now_s: float) -> None:
    """Plan the next step: decodes, then the prompt computed in part, then who waits."""
    s = w.replicas[r]
    # Free what those hold whose last token the scheduler knows of by now.
    slot = (s.plan - w.lag) & (w.ends.shape[1] - 1)
    i = w.ends[r, slot].first
    while i != NONE:
        _leave(w, r, i)
        i = w.requests[i].end_after
    w.ends[r, slot].first = w.ends[r, slot].last = NONE
    if not math.isinf(w.timeout_s):
        _give_up(w, r, now_s)
    s.is_blocked = False
    if w.prompts_first and _prompts(w, r, now_s):
        return
    n_preemptions = s.n_preemptions
    # Decodes take the blocks that they need; the newest are preempted until there are enough.
    column = s.plan % w.block_tokens
    while w.crossing[r, column] > w.n_blocks - s.used:
        _preempt(w, r)
    tables.take(w, r, w.crossing[r, column])
    sequences, first = s.n_decodes, NONE
    budget = w.max_num_batched_tokens - sequences
    prompt_tokens, pairs = 0, 0.0
    if s.partial != NONE:
        q = w.requests[s.partial]
        after = q.computed + min(q.input + q.generated - q.computed, budget)
        if tables.blocks_of(w, after) - tables.blocks_of(w, q.computed) > w.n_blocks - s.used:
            _preempt(w, r)  # the request in question is the newest: it was preempted itself
        else:
            first = s.partial
            prompt_tokens, pairs = _chunk(w, r, first, budget)
    if not w.prompts_first and s.n_preemptions == n_preemptions:
        first, prompt_tokens, pairs = _join(w, r, now_s, budget, first, prompt_tokens, pairs)
    if sequences > 0 or first != NONE:
        _step(w, r, now_s, prompt_tokens, pairs, first)
    else:
        s.plan_s = max(now_s, s.free_s)
    s.plan += 1


@compiled
def _prompts(w: World, r: int, now_s: float) -> bool:
    """Run a step of prompts alone, if any may be computed; decodes wait for it."""
    s = w.replicas[r]
    budget, first, prompt_tokens, pairs = w.max_num_batched_tokens, NONE, 0, 0.0
    if s.partial != NONE:
        i, q = s.partial, w.requests[s.partial]
        n = min(q.input + q.generated - q.computed, budget)
        needed = tables.blocks_of(w, q.computed + n) - tables.blocks_of(w, q.computed)
        if needed > w.n_blocks - s.used:
            return False  # decodes go on, until there is room
        first = i
        prompt_tokens, pairs = _chunk(w, r, i, budget)
    first, prompt_tokens, pairs = _join(w, r, now_s, budget, first, prompt_tokens, pairs)
    if prompt_tokens == 0:
        return False
    start_s = max(now_s, s.free_s)
    s.paused_s += (s.n_counted - s.n_paused) * s.free_s
    s.n_paused = s.n_counted
    end_s = _run(w, r, start_s, _step_ms(w, prompt_tokens, pairs, 0, 0))
    while first != NONE and first != s.partial:
        # It decodes in the plan that is still to come.
        _sample_first(w, r, first, end_s, s.plan - 1)
        if w.requests[first].end_plan < s.plan:
            _answered(w, r, first, end_s)
        first = w.requests[first].newer
    return True


@compiled
def _join(
    w: World, r: int, now_s: float, budget: int, first: int, prompt_tokens: int, pairs: float
) -> tuple[int, int, float]:
    """Have who waits join a step, with chunks of prompts, while tokens, slots and blocks last.

    Takes and returns what is planned: the first request of a prompt, prompt tokens, their pairs.
    """
    while prompt_tokens < budget:
        i = tables.first_waiting(w, r)
        if i == NONE or not _admit(w, r, i, now_s):
            break
        n, of_chunk = _chunk(w, r, i, budget - prompt_tokens)
        prompt_tokens, pairs = prompt_tokens + n, pairs + of_chunk
        first = i if first == NONE else first
    return first, prompt_tokens, pairs


@compiled
def _chunk(w: World, r: int, i: int, budget: int) -> tuple[int, float]:
    """Plan a chunk of a prompt; return its tokens, and their pairs with those they look back on."""
    q = w.requests[i]
    computed = q.computed
    n = q.input + q.generated - computed
    if w.receives_cache:
        tables.grow(w, r, i, n)
        return 0, 0.0
    n = min(n, budget)
    tables.grow(w, r, i, n)
    w.replicas[r].partial = i if q.computed < q.input + q.generated else NONE
    return n, n * (computed + (n + 1) * 0.5)


@compiled
def _admit(w: World, r: int, i: int, now_s: float) -> bool:
    """Have a waiting request run if it has come and its whole prompt fits into the free blocks."""
    s, q = w.replicas[r], w.requests[i]
    if q.arrival_s + w.request_s > now_s:
        return False
    hit, free = tables.cached_of(w, r, i)
    needed = tables.blocks_of(w, q.input + q.generated) - hit + free
    s.is_blocked = s.n_running == w.max_num_seqs or needed > w.n_blocks - s.used
    if w.reserved_share > 0:
        s.is_blocked |= s.promised + tables.promised_to(w, i, hit) > w.n_blocks
    if s.is_blocked:
        return False
    tables.start_running(w, r, i, hit)
    if q.preemptions == 0:
        q.cached = q.computed
    return True


@compiled
def _preempt(w: World, r: int) -> None:
    """Take the newest running request back to the front of the queue; it will be recomputed."""
    s = w.replicas[r]
    i = s.newest
    w.requests[i].preemptions += 1
    s.n_preemptions += 1
    if w.requests[i].status != PENDING:  # its last token is computed already: it only ends early
        tables.remove_end(w, r, i)
        _leave(w, r, i)
        return
    _interrupt(w, r, i, False)
    w.requests[i].older = s.preempted
    s.preempted = i


@compiled
def _leave(w: World, r: int, i: int) -> None:
    """Free the blocks of a request that was answered."""
    tables.let_go(w, r, i, w.requests[i].input + w.requests[i].output - 1, True)
    tables.stop_running(w, r, i)
    w.replicas[r].n_left += 1


@compiled
def _interrupt(w: World, r: int, i: int, is_over: bool) -> None:
    """Stop a request that runs, and free its blocks."""
    s, q = w.replicas[r], w.requests[i]
    tokens = q.computed
    if i == s.partial:
        s.partial = NONE
    else:
        decoded = s.plan - 1 - q.start_plan
        tokens += decoded
        q.generated += decoded
        q.last_s = s.free_s
        tables.remove_end(w, r, i)
        _leave_decodes(w, r, i, tokens)
    tables.let_go(w, r, i, tokens, is_over)
    tables.stop_running(w, r, i)


@compiled
def _give_up(w: World, r: int, now_s: float) -> None:
    """Abort the requests whose clients have given up."""
    s = w.replicas[r]
    while s.oldest != NONE and w.requests[s.oldest].deadline_s <= now_s:
        i = s.oldest
        q = w.requests[i]
        s.oldest = q.next_arrival
        if q.status == PENDING:
            q.status = TIMEOUT
            if i == s.partial or i == s.newest or q.newer != NONE:
                _interrupt(w, r, i, True)
            s.n_left += 1
            _send_next(w, r, i, max(now_s, s.free_s))
            tables.over(w, i, max(now_s, s.free_s))


@compiled
def _send_next(w: World, r: int, i: int, now_s: float) -> None:
    """Have a user of a closed loop send a next request after request i."""
    following = w.replicas[r].last_arrival + w.replicas.shape[0]
    if now_s < w.closed_until_s and following < w.requests.shape[0]:
        q = w.requests[following]
        q.arrival_s, q.deadline_s = now_s, now_s + w.timeout_s
        q.is_counted = now_s >= w.replicas[r].counted_from_s
        q.status = PENDING
        tables.assign(w, r, following)


@compiled
def _step(w: World, r: int, now_s: float, prompt_tokens: int, pairs: float, first: int) -> None:
    """Run the planned step: the clock moves, and tokens come at its end.

    It computes prompts of `first` and of all who joined after it; one may remain in part.
    """
    s = w.replicas[r]
    s.context += s.n_decodes
    start_s, before_s = max(now_s, s.free_s), s.free_s
    end_s = _run(w, r, start_s, _step_ms(w, prompt_tokens, pairs, s.n_decodes, s.context))
    if s.n_paused > 0:  # counted with their mean gap
        _count_gaps(w, r, end_s, end_s - s.paused_s / s.n_paused, s.n_paused)
    if s.n_counted > s.n_paused:
        _count_gaps(w, r, end_s, end_s - before_s, s.n_counted - s.n_paused)
    s.n_paused, s.paused_s = 0, 0.0
    while first != NONE and first != s.partial:
        _sample_first(w, r, first, end_s, s.plan)
        first = w.requests[first].newer
    # The requests whose last token this step has sampled.
    i = w.ends[r, s.plan & (w.ends.shape[1] - 1)].first
    while i != NONE:
        q = w.requests[i]
        if q.start_plan < s.plan:
            _leave_decodes(w, r, i, q.input + q.output - 1)
        _answered(w, r, i, end_s)
        i = q.end_after


@compiled
def _step_ms(w: World, prompt_tokens: int, pairs: float, sequences: int, context: int) -> float:
    """Return the time of a step, as `StepLaw.step_ms` has it."""
    law = w.law  # in the order of `StepLaw`'s fields
    prefill_ms = law[4] * prompt_tokens + law[5] * pairs
    floor_ms = law[0] + (law[6] if prompt_tokens > 0 else 0.0)
    body_ms = w.weights_ms[prompt_tokens + sequences] + prefill_ms
    return floor_ms + body_ms + law[2] * sequences + law[3] * context


@compiled
def _run(w: World, r: int, start_s: float, took_ms: float) -> float:
    """Have the engine run a step; return when it ends."""
    s = w.replicas[r]
    end_s = start_s + 1e-3 * took_ms
    s.free_s = end_s
    s.plan_s = start_s if w.lag == 2 else end_s
    s.steps += 1
    s.most_blocks = max(s.most_blocks, s.used)
    if start_s >= s.counted_from_s:
        s.busy_s += end_s - start_s
        s.kv_block_s += s.used * (end_s - start_s)
    return end_s


@compiled
def _answered(w: World, r: int, i: int, now_s: float) -> None:
    """Note that a request has its last token."""
    q = w.requests[i]
    q.last_s = now_s
    q.status = OK if now_s <= q.deadline_s else TIMEOUT
    _send_next(w, r, i, now_s)
    tables.over(w, i, now_s)


@compiled
def _count_gaps(w: World, r: int, now_s: float, gap_s: float, n: int) -> None:
    w.gaps[window_of(w, now_s), bin_of(gap_s)] += n
    w.replicas[r].n_gaps += n
    w.replicas[r].gap_sum_s += n * gap_s


@compiled
def _sample_first(w: World, r: int, i: int, end_s: float, plan: int) -> None:
    """Sample the first token after a prompt; it decodes from the plan after this one on."""
    s, q = w.replicas[r], w.requests[i]
    if q.generated == 0:
        q.first_s = end_s
    elif q.is_counted:
        _count_gaps(w, r, end_s, end_s - q.last_s, 1)
    q.generated += 1
    q.start_plan = plan
    q.end_plan = plan + q.output - q.generated
    slot = q.end_plan & (w.ends.shape[1] - 1)
    last = w.ends[r, slot].last
    q.end_before, q.end_after = last, NONE
    if last == NONE:
        w.ends[r, slot].first = i
    else:
        w.requests[last].end_after = i
    w.ends[r, slot].last = i
    if q.end_plan > plan:
        s.n_decodes += 1
        s.n_counted += q.is_counted
        s.context += q.computed
        w.crossing[r, (plan + 1 - q.computed) % w.block_tokens] += 1


@compiled
def _leave_decodes(w: World, r: int, i: int, tokens: int) -> None:
    s, q = w.replicas[r], w.requests[i]
    s.n_decodes -= 1
    s.n_counted -= q.is_counted
    if s.n_paused > s.n_counted:
        s.paused_s *= s.n_counted / s.n_paused
        s.n_paused = s.n_counted
    s.context -= tokens
    w.crossing[r, (q.start_plan + 1 - q.computed) % w.block_tokens] -= 1


@compiled
def route(w: World, router: int, serving: np.ndarray, until_s: float, turn: int) -> int:
    """Send what arrives before a time to the `serving` replicas.

    Takes and returns how many were sent, by which they go in turn.
    """
    while True:
        i = tables.next_due(w)
        due_s = w.requests[i].arrival_s if i != NONE else math.inf
        if w.has_turns and _go_on(w, min(due_s, until_s)):
            continue  # what is answered by then may have others arrive before
        if i == NONE or due_s >= until_s:
            return turn
        tables.take_due(w, i)
        q = w.requests[i]
        if q.status != PENDING:
            tables.over(w, i, due_s)
            continue
        if router == ROUND_ROBIN:
            r = serving[turn % len(serving)]
        else:
            for other in serving:
                advance(w, other, due_s)
            r = _least_busy(w, serving) if router == LEAST_REQUESTS else _best(w, serving, i, turn)
        turn += 1
        tables.assign(w, r, i)


@compiled
def _least_busy(w: World, serving: np.ndarray) -> int:
    """Return the first replica of those with the fewest requests."""
    found = serving[0]
    for r in serving:
        s, best = w.replicas[r], w.replicas[found]
        if s.n_assigned - s.n_left < best.n_assigned - best.n_left:
            found = r
    return found


@compiled
def _best(w: World, serving: np.ndarray, i: int, turn: int) -> int:
    """Return the replica of the highest score for a request; in turn where several have it."""
    q, most, least = w.requests[i], 0, 1 << 60
    for r in serving:
        most, least = max(most, _n_waiting(w, r)), min(least, _n_waiting(w, r))
    found, highest = serving[0], -1e9
    for k in range(len(serving)):
        r = serving[(turn + k) % len(serving)]
        hit = 0
        if q.group != NONE:
            hit = min(w.runs[r * w.n_groups + q.group].cached, q.shared)
        score = _OF_PREFIX * hit / tables.blocks_of(w, q.input)
        score += _OF_QUEUE * (most - _n_waiting(w, r)) / max(most - least, 1)
        score -= _OF_CACHE * w.replicas[r].used / w.n_blocks
        if score > highest + _TIE:
            found, highest = r, score
    return found


@compiled
def _n_waiting(w: World, r: int) -> int:
    s = w.replicas[r]
    return s.n_assigned - s.n_left - s.n_running


@compiled
def _go_on(w: World, until_s: float) -> bool:
    """Bring all replicas a little further, to a time at most; return whether any time passed.

    Steps are short, so that a replica is hardly past the arrival of who waits for another's answer.
    """
    is_busy = False
    for r in range(w.replicas.shape[0]):
        is_busy |= w.replicas[r].n_assigned > w.replicas[r].n_left
    if is_busy:
        until_s = min(until_s, w.clock_s[0] + w.quantum_s)
    if until_s <= w.clock_s[0] or math.isinf(until_s):
        return False
    for r in range(w.replicas.shape[0]):
        advance(w, r, until_s)
    w.clock_s[0] = until_s
    return True


@compiled
def finish(w: World) -> None:
    """Have all replicas answer what they were sent."""
    for r in range(w.replicas.shape[0]):
        advance(w, r, float("inf"))


@compiled
def run_closed(w: World, users: int) -> None:
    """Have users send requests one after another, spread evenly over the replicas."""
    n_replicas = w.replicas.shape[0]
    for i in range(min(users, w.requests.shape[0])):
        w.requests[i].status = PENDING
        tables.assign(w, i % n_replicas, i)
    finish(w)
