"""What a step of a replica computes, compiled: O(1) a step.

The rules are vLLM's; `Scheduler` has the settings by which SGLang and TensorRT-LLM differ.

`advance` makes a replica's plans. Most plans only decode: no request joins, ends, is preempted or
given up. `decode_only` makes these in a loop of its own, with the same numbers as `_plan`.
"""

import math

from sextant.simulate import tables
from sextant.simulate.compiling import compiled
from sextant.simulate.server import (
    BIN_WIDTH,
    N_BINS,
    OK,
    OVERLAP,
    PENDING,
    SHORTEST_S,
    TIMEOUT,
)
from sextant.simulate.world import World
from sextant.workload.requests import NONE


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
def decode_only(w: World, r: int, until_s: float) -> None:  # noqa: PLR0915
    """Make the plans of a replica that only decode, up to the first other one or a time.

    It is one function since each call of another would pass all tables.
    """
    s = w.replicas[r]
    has_prompt = s.partial != NONE or (s.preempted != NONE and not s.is_blocked)
    if has_prompt or s.n_decodes == 0 or s.n_paused > 0:
        return
    # No client gives up before `until_s`, and no request joins.
    if s.oldest != NONE:
        until_s = min(until_s, w.requests[s.oldest].deadline_s)
    if s.waiting != NONE and not s.is_blocked:
        until_s = min(until_s, w.requests[s.waiting].arrival_s + w.request_s)

    crossing = w.crossing[r]
    ends = w.ends[r]
    mask = ends.shape[0] - 1
    counted_from_s = s.counted_from_s
    n = s.n_decodes
    fixed_ms = w.law[0] + w.weights_ms[n] + w.law[2] * n
    context_ms = w.law[3]
    plan = s.plan
    plan_s = s.plan_s
    free_s = s.free_s
    context = s.context
    used = s.used
    busy_s = s.busy_s
    kv_block_s = s.kv_block_s
    steps = s.steps
    gap_sum_s = 0.0
    low_s = high_s = 0.0
    bin_ = 0
    while plan_s < until_s:
        if ends[plan & mask].first != NONE or ends[(plan - w.lag) & mask].first != NONE:
            break
        new = crossing[plan % w.block_tokens]
        if new > w.n_blocks - used:
            break
        used += new
        context += n
        start_s = max(plan_s, free_s)
        end_s = start_s + 1e-3 * _overlapped(w, fixed_ms + context_ms * context)
        gap_s = end_s - free_s
        free_s = end_s
        plan_s = start_s if w.lag == 2 else end_s
        plan += 1
        steps += 1
        if start_s >= counted_from_s:
            busy_s += end_s - start_s
            kv_block_s += used * (end_s - start_s)
        if not low_s <= gap_s < high_s:
            bin_ = bin_of(gap_s)
            low_s = SHORTEST_S * math.exp(bin_ * BIN_WIDTH)
            high_s = SHORTEST_S * math.exp((bin_ + 1) * BIN_WIDTH)
        w.gaps[window_of(w, end_s), bin_] += s.n_counted
        gap_sum_s += gap_s
    # Nothing else takes or frees blocks meanwhile, so they are booked at once.
    tables.take(w, r, used - s.used)
    s.n_gaps += s.n_counted * (steps - s.steps)
    s.gap_sum_s += s.n_counted * gap_sum_s
    # The loop has these in registers.
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
    """Plan the next step: decodes, then the prompt computed in part, then waiting requests."""
    s = w.replicas[r]
    # Free the blocks of requests whose last token the scheduler knows of by now.
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
    sequences = s.n_decodes
    first = NONE
    budget = w.max_num_batched_tokens - sequences
    prompt_tokens = 0
    pairs = 0.0
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
    budget = w.max_num_batched_tokens
    first = NONE
    prompt_tokens = 0
    pairs = 0.0
    if s.partial != NONE:
        i = s.partial
        q = w.requests[s.partial]
        n = min(q.input + q.generated - q.computed, budget)
        needed = tables.blocks_of(w, q.computed + n) - tables.blocks_of(w, q.computed)
        if needed > w.n_blocks - s.used:
            return False  # decodes go on, until there is room
        first = i
        prompt_tokens, pairs = _chunk(w, r, i, budget)
    first, prompt_tokens, pairs = _join(w, r, now_s, budget, first, prompt_tokens, pairs)
    if first == NONE:
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
    """Have waiting requests join a step with chunks of prompts, while tokens and blocks last.

    Takes and returns what is planned: the first request of a prompt, prompt tokens, their pairs.
    """
    while prompt_tokens < budget:
        i = tables.first_waiting(w, r)
        if i == NONE or not _admit(w, r, i, now_s):
            break
        n, of_chunk = _chunk(w, r, i, budget - prompt_tokens)
        prompt_tokens = prompt_tokens + n
        pairs = pairs + of_chunk
        first = i if first == NONE else first
    return first, prompt_tokens, pairs


@compiled
def _chunk(w: World, r: int, i: int, budget: int) -> tuple[int, float]:
    """Plan a chunk of a prompt; return its tokens, and their pairs (`StepLaw`)."""
    q = w.requests[i]
    computed = q.computed
    n = q.input + q.generated - computed
    if q.is_received:
        tables.grow(w, r, i, n)
        return 0, 0.0
    n = min(n, budget)
    tables.grow(w, r, i, n)
    w.replicas[r].partial = i if q.computed < q.input + q.generated else NONE
    return n, n * (computed + (n + 1) * 0.5)


@compiled
def _admit(w: World, r: int, i: int, now_s: float) -> bool:
    """Have a waiting request run if it has come and its whole prompt fits into the free blocks."""
    s = w.replicas[r]
    q = w.requests[i]
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
    s = w.replicas[r]
    q = w.requests[i]
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
        q.arrival_s = now_s
        q.deadline_s = now_s + w.timeout_s
        q.is_counted = now_s >= w.replicas[r].counted_from_s
        q.status = PENDING
        tables.assign(w, r, following)


@compiled
def _step(w: World, r: int, now_s: float, prompt_tokens: int, pairs: float, first: int) -> None:
    """Run the planned step: the clock moves, and tokens come at its end.

    It computes the prompts of `first` and of all requests that joined after it; one prompt may
    remain in part.
    """
    s = w.replicas[r]
    s.context += s.n_decodes
    start_s = max(now_s, s.free_s)
    before_s = s.free_s
    end_s = _run(w, r, start_s, _step_ms(w, prompt_tokens, pairs, s.n_decodes, s.context))
    if s.n_paused > 0:  # counted with their mean gap
        _count_gaps(w, r, end_s, end_s - s.paused_s / s.n_paused, s.n_paused)
    if s.n_counted > s.n_paused:
        _count_gaps(w, r, end_s, end_s - before_s, s.n_counted - s.n_paused)
    s.n_paused = 0
    s.paused_s = 0.0
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
    return _overlapped(w, floor_ms + body_ms + law[2] * sequences + law[3] * context)


@compiled
def _overlapped(w: World, device_ms: float) -> float:
    """Return the time of a step whose kernels the host launches, as `overlapped` has it."""
    host_ms = w.law[11]
    if host_ms == 0:
        return device_ms
    return (host_ms**OVERLAP + device_ms**OVERLAP) ** (1 / OVERLAP)


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
    s = w.replicas[r]
    q = w.requests[i]
    if q.generated == 0:
        q.first_s = end_s
    elif q.is_counted:
        _count_gaps(w, r, end_s, end_s - q.last_s, 1)
    q.generated += 1
    q.start_plan = plan
    q.end_plan = plan + q.output - q.generated
    slot = q.end_plan & (w.ends.shape[1] - 1)
    last = w.ends[r, slot].last
    q.end_before = last
    q.end_after = NONE
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
    s = w.replicas[r]
    q = w.requests[i]
    s.n_decodes -= 1
    s.n_counted -= q.is_counted
    if s.n_paused > s.n_counted:
        s.paused_s *= s.n_counted / s.n_paused
        s.n_paused = s.n_counted
    s.context -= tokens
    w.crossing[r, (q.start_plan + 1 - q.computed) % w.block_tokens] -= 1
