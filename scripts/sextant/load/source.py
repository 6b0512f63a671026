"""Where the requests of a level come from: drawn from a workload, encoded ahead of time."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from sextant.load.client import PreparedRequest, Target, prepare
from sextant.workload import RequestModel
from sextant.workload.prompts import PromptSource

_SAMPLING = ("temperature", "top_k", "top_p")
# Requests prepared at once when the prepared ones have run out.
PREPARED_AT_LEAST = 64


class RequestSource:
    """Draws requests from a workload and encodes them; the same seed gives the same bytes."""

    def __init__(
        self,
        target: Target,
        model: RequestModel,
        prompts: PromptSource,
        seed: int,
        sampler: str = "joint",
    ) -> None:
        self._target, self._model, self._prompts = target, model, prompts
        self._sampler = sampler
        self._seeds = itertools.count(seed)
        self._ready: Iterator[PreparedRequest] = iter(())
        self.n_prepared_late = 0

    def prepare(self, n: int) -> None:
        """Encode the next `n` requests; requests of earlier calls are dropped."""
        self._ready = iter(self._encode(n))
        self.n_prepared_late = 0

    def take(self) -> PreparedRequest:
        """Return the next request."""
        request = next(self._ready, None)
        if request is None:
            self._ready = iter(self._encode(PREPARED_AT_LEAST))
            request = next(self._ready)
            self.n_prepared_late += PREPARED_AT_LEAST
        return request

    def _encode(self, n: int) -> list[PreparedRequest]:
        seed = next(self._seeds)
        request_seed, prompt_seed = np.random.SeedSequence(seed).spawn(2)
        drawn: pd.DataFrame = self._model.sample(n, seed=request_seed, sampler=self._sampler)
        prompts = self._prompts.prompts(drawn["input_tokens"].to_numpy(), prompt_seed)
        return [
            prepare(self._target, prompt, int(request["output_tokens"]), _sampling(request))
            for prompt, request in zip(prompts, drawn.to_dict("records"), strict=True)
        ]


def _sampling(request: Mapping[str, Any]) -> dict[str, float]:
    """Return how a request samples its tokens: greedy unless its parameters say otherwise."""
    if request.get("is_greedy") is True:
        return {}
    return {
        name: request[name].item() if hasattr(request[name], "item") else request[name]
        for name in _SAMPLING
        if name in request and not pd.isna(request[name])
    }


def unsent_parameters(model: RequestModel) -> list[str]:
    """Return the parameters of a workload that a request to the server cannot carry."""
    sent = {"input_tokens", "output_tokens", "is_greedy", *_SAMPLING}
    return [name for name in model.parameters if name not in sent]
