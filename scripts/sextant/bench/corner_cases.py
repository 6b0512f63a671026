"""The batches that a batch weight allows at its extremes, and whether servers hold them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from sextant.engine.protocol import Server
from sextant.load.open_loop import run_open_loop
from sextant.load.source import ListedRequests
from sextant.workload.prompts import PromptSource
from sextant.workload.request_model import RequestModel

# Enough tokens to decode a few times after the prefill has filled the KV cache.
_SHORT_OUTPUT_TOKENS = 4


@dataclass(frozen=True)
class RequestLengths:
    """The shortest, mean and longest requests of a workload, in tokens."""

    input_tokens: tuple[int, int, int]
    output_tokens: tuple[int, int, int]


@dataclass(frozen=True)
class CornerCase:
    """Requests that are sent all at once."""

    name: str
    n_requests: int
    input_tokens: int
    output_tokens: int


def request_lengths(
    model: RequestModel, max_input_tokens: int, max_output_tokens: int
) -> RequestLengths:
    """Return a workload's lengths: the least and the mean of its bins, the most by its caps."""

    def lengths(name: str, cap: int) -> tuple[int, int, int]:
        values = model.frame[name].to_numpy(float)
        mean = np.average(values, weights=model.weights)
        least, mean = (int(np.clip(round(value), 1, cap)) for value in (values.min(), mean))
        return least, mean, cap

    return RequestLengths(
        lengths("input_tokens", max_input_tokens), lengths("output_tokens", max_output_tokens)
    )


def corner_cases(
    batch_weight_tokens: int, lengths: RequestLengths, max_num_seqs: int
) -> list[CornerCase]:
    """Return the batches at the extremes of a batch weight, after LLM-Pilot, section III-C2.

    One longest request, then as many requests as the weight and the engine's own limit
    hold, of the shortest, the mean and the two mixed lengths. No output is so short that
    its request would end before the others have begun.
    """
    least_in, mean_in, most_in = lengths.input_tokens
    least_out, mean_out, most_out = lengths.output_tokens
    least_out = max(least_out, min(_SHORT_OUTPUT_TOKENS, most_out))

    def full(name: str, input_tokens: int, output_tokens: int) -> CornerCase:
        n_held = batch_weight_tokens // (input_tokens + output_tokens)
        return CornerCase(name, int(np.clip(n_held, 1, max_num_seqs)), input_tokens, output_tokens)

    return [
        CornerCase("one longest request", 1, most_in, most_out),
        full("full of shortest requests", least_in, least_out),
        full("full of longest prompts with shortest outputs", most_in, least_out),
        full("full of shortest prompts with longest outputs", least_in, most_out),
        full("full of mean requests", mean_in, mean_out),
    ]


def check_corner_cases(
    servers: Sequence[Server],
    cases: Sequence[CornerCase],
    prompts: PromptSource,
    seed: int,
    timeout_s: float,
) -> None:
    """Put each case on all servers at the same time.

    Raises ServerError, which tells whether memory ran out: a request failed, or a server died.
    """
    targets = [server.target for server in servers]
    for number, case in enumerate(cases):
        # Request i goes to server i mod n: each gets the whole case.
        n_requests = case.n_requests * len(servers)
        inputs, outputs = (
            np.full(n_requests, tokens) for tokens in (case.input_tokens, case.output_tokens)
        )
        source = ListedRequests(targets[0].model, inputs, outputs, prompts, seed + number)
        due_s = np.zeros(n_requests)
        result = run_open_loop(targets, source, due_s, timeout_s, time.monotonic_ns())
        rows = result.table().select(["status", "error", "replica"])
        failed = rows.filter(pc.not_equal(rows["status"], "ok")).to_pylist()
        if failed:
            server, problem = servers[failed[0]["replica"]], failed[0]["error"]
            if failed[0]["status"] == "timeout":
                problem += ". Fix: raise engine.request_timeout_s, unless the server hangs"
            raise server.error(f"corner case '{case.name}' failed: {problem}")
        for server in servers:
            if not server.is_healthy():
                raise server.error(f"the engine ended after corner case '{case.name}'")
