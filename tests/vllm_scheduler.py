"""Runs vLLM's own scheduler without a model: steps take what a law says, tokens are made up.

Runs in `.venv-vllm`, which has no Sextant: `real_vllm.schedule_with_vllm` starts it. Standard input
is JSON: cases of `config` (an LLM's folder), `requests`, `scheduler` and `law`. Standard output is
JSON: what became of each request, and the steps. The loop around the scheduler is that of vLLM's
engine core; its clock is the law's.
"""

import json
import os
import sys
from collections import deque
from typing import Any

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

OWN = 10**9


def make_scheduler(config: str, settings: dict[str, Any]) -> Any:
    """Return the scheduler that vLLM would make of these settings."""
    arguments = EngineArgs(
        model=config,
        skip_tokenizer_init=True,
        max_model_len=settings["longest"],
        max_num_seqs=settings["max_num_seqs"],
        max_num_batched_tokens=settings["max_num_batched_tokens"],
        enable_prefix_caching=settings["has_prefix_caching"],
    )
    found = arguments.create_engine_config()
    # Those of the platform, a CPU, are not those that are asked for.
    found.scheduler_config.async_scheduling = settings["is_asynchronous"]
    n_blocks, size = settings["n_blocks"] + 1, settings["block_tokens"]
    found.cache_config.num_gpu_blocks, found.cache_config.block_size = n_blocks, size
    dtype = found.model_config.dtype
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=dtype)
    group = KVCacheGroupSpec(["layer"], spec)
    return found.scheduler_config.get_scheduler_cls()(
        vllm_config=found,
        kv_cache_config=KVCacheConfig(n_blocks, [], [group]),
        structured_output_manager=StructuredOutputManager(found),
        block_size=size,
    )


class Engine:
    """The engine's loop: requests come, steps are planned, tokens return."""

    def __init__(self, asked: dict[str, Any]) -> None:
        settings = asked["scheduler"]
        self.scheduler = make_scheduler(asked["config"], settings)
        self.depth = 2 if settings["is_asynchronous"] else 1
        self.rows, self.law = asked["requests"], asked["law"]
        self.coming = deque(range(len(self.rows)))
        self.requests: dict[str, Request] = {}
        self.found: dict[str, dict[str, Any]] = {}
        self.prompt_end: dict[str, int] = {}
        """Tokens up to which a request computes its prompt, since it was last admitted."""
        self.steps: list[tuple[int, int]] = []
        self.free_s, self.timeout_s = 0.0, settings["timeout_s"]
        hash_of = get_hash_fn_by_name("sha256")
        init_none_hash(hash_of)
        is_cached = settings["has_prefix_caching"]
        self.hasher = get_request_block_hasher(settings["block_tokens"], hash_of)
        self.hasher = self.hasher if is_cached else None

    def token(self, i: int, position: int) -> int:
        """Return a token that requests share as far as their common prefix goes."""
        row = self.rows[i]
        if position < row["prefix_tokens"]:
            return row["prefix_id"] * 100_000 + position
        return OWN + i * 100_000 + position

    def arrive(self, now_s: float) -> None:
        while self.coming and self.rows[self.coming[0]]["arrival_s"] <= now_s:
            i = self.coming.popleft()
            tokens = [self.token(i, k) for k in range(self.rows[i]["input_tokens"])]
            sampling = SamplingParams(max_tokens=self.rows[i]["output_tokens"], ignore_eos=True)
            self.requests[str(i)] = Request(
                str(i), tokens, sampling, None, block_hasher=self.hasher
            )
            self.scheduler.add_request(self.requests[str(i)])

    def give_up(self, now_s: float) -> None:
        """Abort the requests whose clients have given up."""
        for name, request in self.requests.items():
            late_s = self.rows[int(name)]["arrival_s"] + self.timeout_s
            if late_s <= now_s and not request.is_finished():
                self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def run(self) -> None:
        now_s, queue = 0.0, deque()
        while self.coming or queue or self.scheduler.has_requests():
            self.arrive(now_s)
            self.give_up(now_s)
            if self.scheduler.has_requests():
                plan = self.scheduler.schedule()
                n_tokens = plan.total_num_scheduled_tokens
                if n_tokens:
                    self.free_s = max(now_s, self.free_s) + 1e-3 * self.step_ms(plan)
                queue.append((self.free_s if n_tokens else now_s, plan, self.sampled(plan)))
                if len(queue) < self.depth and (n_tokens or self.scheduler.has_requests()):
                    continue
            elif not queue:
                now_s = self.rows[self.coming[0]]["arrival_s"]
                continue
            end_s, plan, sampled = queue.popleft()
            now_s = max(now_s, end_s)
            self.update(plan, sampled, now_s)

    def step_ms(self, plan: Any) -> float:
        """Return the time of a step; the law is linear."""
        for new in plan.scheduled_new_reqs:
            self.found[new.req_id] = {"cached": new.num_computed_tokens}
        again = plan.scheduled_cached_reqs.resumed_req_ids
        for name in [*(new.req_id for new in plan.scheduled_new_reqs), *again]:
            self.prompt_end[name] = self.requests[name].num_tokens
        prompt_tokens = sequences = context = 0
        pairs = 0.0
        for name, n in plan.num_scheduled_tokens.items():
            before = self.requests[name].num_computed_tokens - n
            if before < self.prompt_end[name]:
                prompt_tokens += n
                pairs += n * (before + (n + 1) / 2)
            else:
                sequences += 1
                context += before + 1
        self.steps.append((prompt_tokens, sequences))
        law = self.law
        took_ms = law["floor_ms"] + law["dense_ms"] + law["prompt_step_ms"] * (prompt_tokens > 0)
        took_ms += law["prefill_token_ms"] * prompt_tokens + law["prefill_pair_ms"] * pairs
        return took_ms + law["sequence_ms"] * sequences + law["kv_token_ms"] * context

    def sampled(self, plan: Any) -> list[bool]:
        """Return which requests of a step get a token: all but those in the middle of a prompt."""
        names = plan.num_scheduled_tokens
        return [self.requests[name].num_computed_tokens >= self.prompt_end[name] for name in names]

    def update(self, plan: Any, sampled: list[bool], now_s: float) -> None:
        names = list(plan.num_scheduled_tokens)
        tokens = [
            [self.token(int(name), self.requests[name].num_tokens)] if is_sampled else []
            for name, is_sampled in zip(names, sampled, strict=True)
        ]
        places = {name: place for place, name in enumerate(names)}
        self.scheduler.update_from_output(plan, ModelRunnerOutput(names, places, tokens))
        for name, is_sampled in zip(names, sampled, strict=True):
            request, row = self.requests[name], self.found[name]
            row["preemptions"] = request.num_preemptions
            if is_sampled and request.status != RequestStatus.FINISHED_ABORTED:
                row.setdefault("first_s", now_s)
                row["last_s"] = now_s


def outcome(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what became of the requests of a case, in their order, and its steps."""
    engine = Engine(asked)
    engine.run()
    rows = [engine.found.get(str(i), {}) for i in range(len(engine.rows))]
    return {"requests": rows, "steps": engine.steps}


if __name__ == "__main__":
    found = [outcome(asked) for asked in json.load(sys.stdin)]
    print("\n" + json.dumps(found))
