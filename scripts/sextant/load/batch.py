"""Best-effort load: a batch of requests, all at once."""

import asyncio
import time

import numpy as np
import uvloop

from sextant.load.client import Connection, Outcome, Target, prepare
from sextant.workload.prompts import random_token_ids


def run_batch(
    target: Target,
    input_tokens: np.ndarray,
    output_tokens: np.ndarray,
    vocab_size: int,
    seed: int,
    timeout_s: float,
) -> list[Outcome]:
    """Send one request per entry of the two arrays at once; return their outcomes in order."""
    prompts = random_token_ids(input_tokens, vocab_size, seed=seed)
    requests = [
        prepare(target, prompt, int(output))
        for prompt, output in zip(prompts, output_tokens, strict=True)
    ]

    async def send_all() -> list[Outcome]:
        connections = [Connection(target) for _ in requests]
        scheduled_ns = time.monotonic_ns()
        outcomes = await asyncio.gather(
            *(
                connection.send(request, scheduled_ns, timeout_s)
                for connection, request in zip(connections, requests, strict=True)
            )
        )
        for connection in connections:
            connection.close()
        return outcomes

    return uvloop.run(send_all())
