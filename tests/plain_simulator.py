"""The simulation again, as plain as it can be: each step, each request and each block by itself.

It judges `sextant.simulate`, with which it shares nothing but the law of a step. The rules are
those of vLLM V1's scheduler; `prompts_first` is SGLang's, `reserved_share` TensorRT-LLM's. Each
block of the KV cache has a hash, users and a place in the free list.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from sextant.simulate.server import Scheduler, StepLaw
from sextant.workload.requests import RequestStream

LAW = StepLaw(2, 5, 0.05, 2e-5, 0.02, 1e-7, 0.0, 4, 0.05, 1.0, 3.0)
PLAN = Scheduler(40_000, max_num_seqs=64, max_num_batched_tokens=2048)


def sent(n: int, rate_rps: float, seed: int = 0) -> RequestStream:
    """Return requests of many lengths that come at random."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, n))
    return RequestStream.of(arrival_s, rng.integers(10, 1500, n), rng.integers(1, 200, n))


@dataclass(eq=False)
class Job:
    """A request, and where it is."""

    index: int
    arrival_s: float
    reaches_s: float
    deadline_s: float
    input: int
    output: int
    prefix: tuple[int, int]
    computed: int = 0
    generated: int = 0
    is_decoding: bool = False
    blocks: list[int] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    status: str = "pending"
    preemptions: int = 0
    cached: int = 0
    promised: int = 0

    @property
    def tokens(self) -> int:
        return self.input + self.generated


class Cache:
    """Blocks: a list of free ones, the next to be taken first, and those that hold known tokens."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.size, self.is_caching = scheduler.block_tokens, scheduler.has_prefix_caching
        self.free = deque(range(scheduler.n_blocks))
        self.users = [0] * scheduler.n_blocks
        self.hash_of: dict[int, tuple] = {}
        self.with_hash: dict[tuple, set[int]] = {}

    def hashes(self, job: Job, tokens: int) -> list[tuple]:
        name, length = job.prefix
        return [
            ("prefix", name, k) if (k + 1) * self.size <= length else ("own", job.index, k)
            for k in range(tokens // self.size)
        ]

    def cached(self, job: Job) -> list[int]:
        found: list[int] = []
        for key in self.hashes(job, job.tokens - 1) if self.is_caching else ():
            if not (blocks := self.with_hash.get(key)):
                break
            found.append(min(blocks))
        return found

    def fits(self, job: Job, cached: list[int], tokens: int) -> bool:
        touched = sum(not self.users[block] for block in cached)
        new = -(-tokens // self.size) - len(job.blocks) - len(cached)
        return new + touched <= len(self.free)

    def hold(self, job: Job, cached: list[int]) -> None:
        for block in cached:
            if not self.users[block]:
                self.free.remove(block)
            self.users[block] += 1
        job.blocks += cached
        job.computed = len(cached) * self.size

    def grow(self, job: Job, tokens: int) -> None:
        job.computed += tokens
        for _ in range(-(-job.computed // self.size) - len(job.blocks)):
            block = self.free.popleft()
            if key := self.hash_of.pop(block, None):
                self.with_hash[key].discard(block)
            self.users[block] = 1
            job.blocks.append(block)
        if self.is_caching:
            for block, key in zip(job.blocks, self.hashes(job, job.computed), strict=False):
                if block not in self.hash_of:
                    self.hash_of[block] = key
                    self.with_hash.setdefault(key, set()).add(block)

    def let_go(self, job: Job) -> None:
        for block in reversed(job.blocks):
            self.users[block] -= 1
            if not self.users[block]:
                put = self.free.append if block in self.hash_of else self.free.appendleft
                put(block)
        job.blocks = []


class Replica:
    """One server: its queue, its running requests, its clock."""

    def __init__(self, scheduler: Scheduler, law: StepLaw) -> None:
        self.scheduler, self.law = scheduler, law
        self.cache = Cache(scheduler)
        self.queue: deque[Job] = deque()
        self.running: list[Job] = []
        self.present: list[Job] = []
        self.ended: deque[list[Job]] = deque([[]] * (2 if scheduler.is_asynchronous else 1))
        self.plan_s = self.free_s = self.busy_s = 0.0
        self.gaps: list[float] = []
        self.steps: list[tuple[float, float, int, int]] = []

    def advance(self, until_s: float) -> None:
        while True:
            now_s = self.plan_s
            if not self.running:
                if not self.queue:
                    return
                now_s = max(now_s, self.queue[0].reaches_s)
            if now_s >= until_s:
                return
            self.plan(now_s)

    def plan(self, now_s: float) -> None:
        for job in self.ended.popleft():
            if job in self.running:
                self.leave(job)
        for job in [job for job in self.present if job.deadline_s <= now_s]:
            self.give_up(job)
        if self.scheduler.prompts_first and self.prompts(now_s):
            return
        budget, has_preempted = self.scheduler.max_num_batched_tokens, False
        chunks: dict[Job, int] = {}
        position = 0
        while position < len(self.running):
            job = self.running[position]
            n = min(job.tokens - job.computed, budget) if job.status == "pending" else 0
            while n and job in self.running and not self.cache.fits(job, [], job.computed + n):
                self.preempt()
                has_preempted = True
            if n and job in self.running:
                self.cache.grow(job, n)
                chunks[job] = n
                budget -= n
            position += 1
        if not (has_preempted or self.scheduler.prompts_first):
            budget = self.admit(now_s, chunks, budget)
        assert budget >= 0
        ended: list[Job] = []
        self.ended.append(ended)
        self.step(now_s, chunks, ended)

    def admit(self, now_s: float, chunks: dict[Job, int], budget: int) -> int:
        while budget and self.queue:
            job = self.queue[0]
            cached = self.cache.cached(job)
            promised = self.promise(job, len(cached))
            in_all = promised + sum(other.promised for other in self.running)
            if (
                job.reaches_s > now_s
                or len(self.running) == self.scheduler.max_num_seqs
                or not self.cache.fits(job, cached, job.tokens)
                or (self.scheduler.reserved_share and in_all > self.scheduler.n_blocks)
            ):
                break
            self.running.append(self.queue.popleft())
            self.cache.hold(job, cached)
            job.promised = promised
            job.cached = job.computed if not job.preemptions else job.cached
            chunks[job] = job.tokens - job.computed
            if not self.scheduler.receives_cache:
                chunks[job] = min(chunks[job], budget)
                budget -= chunks[job]
            self.cache.grow(job, chunks[job])
        return budget

    def promise(self, job: Job, n_cached: int) -> int:
        share, size = self.scheduler.reserved_share, self.scheduler.block_tokens
        tokens = job.input + max(job.generated, int(share * job.output))
        shared = min(job.prefix[1], job.input - 1) // size
        return -(-tokens // size) - min(n_cached, shared)

    def prompts(self, now_s: float) -> bool:
        """Run a step of prompts alone, if there are any; decodes wait for it."""
        chunks: dict[Job, int] = {}
        budget = self.scheduler.max_num_batched_tokens
        partial = [j for j in self.running if j.status == "pending" and not j.is_decoding]
        for job in partial:
            n = min(job.tokens - job.computed, budget)
            if not self.cache.fits(job, [], job.computed + n):
                return False
            self.cache.grow(job, n)
            chunks[job] = n
            budget -= n
        self.admit(now_s, chunks, budget)
        if chunks:
            self.ended.appendleft([])
            self.step(now_s, chunks, self.ended[-1])
        return bool(chunks)

    def preempt(self) -> None:
        job = self.running.pop()
        job.preemptions += 1
        self.cache.let_go(job)
        if job.status != "pending":
            self.present.remove(job)  # its last token is computed: it only ends early
            return
        job.computed, job.is_decoding = 0, False
        self.queue.appendleft(job)

    def give_up(self, job: Job) -> None:
        if job.status == "pending":
            job.status = "timeout"
            if job in self.queue:
                self.queue.remove(job)
                self.present.remove(job)
            else:
                self.leave(job)

    def leave(self, job: Job) -> None:
        self.cache.let_go(job)
        self.running.remove(job)
        self.present.remove(job)

    def step(self, now_s: float, chunks: dict[Job, int], ended: list[Job]) -> None:
        if not chunks:
            self.plan_s = max(now_s, self.free_s)
            return
        prompts = {job: n for job, n in chunks.items() if not job.is_decoding}
        decodes = [job for job in chunks if job.is_decoding]
        pairs = sum(n * (job.computed - n + (n + 1) / 2) for job, n in prompts.items())
        context = sum(job.computed for job in decodes)
        if self.scheduler.receives_cache:
            prompts, pairs = {}, 0
        took_ms = self.law.step_ms(sum(prompts.values()), len(decodes), context, pairs)
        start_s = max(now_s, self.free_s)
        self.free_s = start_s + 1e-3 * took_ms
        self.plan_s = start_s if self.scheduler.is_asynchronous else self.free_s
        self.busy_s += self.free_s - start_s
        self.steps.append((start_s, self.free_s, sum(chunks.values()), len(decodes)))
        for job in chunks:
            if job.computed == job.tokens:
                self.sample(job, ended)

    def sample(self, job: Job, ended: list[Job]) -> None:
        if job.token_s:
            self.gaps.append(self.free_s - job.token_s[-1])
        job.token_s.append(self.free_s)
        job.generated += 1
        job.is_decoding = True
        if job.generated == job.output:
            job.status = "ok" if self.free_s <= job.deadline_s else "timeout"
            ended.append(job)


def score(replica: Replica, replicas: list[Replica], job: Job) -> float:
    """Return what llm-d's router gives a replica for a request: prefix, queue, memory."""
    cache = replica.cache
    hit = len(cache.cached(job)) / -(-job.input // cache.size)
    waiting = [len(each.present) - len(each.running) for each in replicas]
    spread = max(max(waiting) - min(waiting), 1)
    queue = (max(waiting) - len(replica.present) + len(replica.running)) / spread
    used = 1 - len(cache.free) / replica.scheduler.n_blocks
    return round(3 * hit + 2 * queue - 2 * used, 9)


def run_plainly(
    requests: RequestStream,
    scheduler: Scheduler,
    law: StepLaw,
    n_replicas: int = 1,
    router: str = "round_robin",
) -> tuple[list[Job], list[Replica]]:
    """Return what becomes of every request, and the servers as they were left."""
    replicas = [Replica(scheduler, law) for _ in range(n_replicas)]
    jobs = []
    turn = 0
    columns = (requests.arrival_s, requests.input_tokens, requests.output_tokens)
    no_prefixes = (np.full(requests.n, -1), np.zeros(requests.n, int))
    prefixes = zip(*(requests.prefixes or no_prefixes), strict=True)
    for index, (row, prefix) in enumerate(zip(zip(*columns, strict=True), prefixes, strict=True)):
        arrival_s, n_input, n_output = row
        times_s = (arrival_s, arrival_s + 1e-3 * law.request_ms, arrival_s + scheduler.timeout_s)
        job = Job(index, *times_s, n_input, n_output, prefix)
        jobs.append(job)
        if n_input + n_output > scheduler.longest:
            job.status = "refused"
            continue
        if router == "round_robin":
            chosen = replicas[turn % n_replicas]
        else:
            for replica in replicas:
                replica.advance(arrival_s)
            in_turn = [replicas[(turn + k) % n_replicas] for k in range(n_replicas)]
            if router == "prefix":
                chosen = max(in_turn, key=lambda each: score(each, replicas, job))
            else:
                chosen = min(replicas, key=lambda each: len(each.present))
        turn += 1
        chosen.queue.append(job)
        chosen.present.append(job)
    for replica in replicas:
        replica.advance(float("inf"))
    return jobs, replicas
