"""Where the requests of a level come from: drawn from a workload or listed, encoded ahead."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np

from sextant.workload.prompts import CorpusTokens, prompt_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sextant.workload.request_model import RequestModel
    from sextant.workload.shared_blocks import TraceBlocks

_SAMPLING = ("temperature", "top_k", "top_p")
# Requests drawn at once, after the first ones.
_BLOCK = 64
# Common words: a single token in most vocabularies.
_WORDS = (
    "the and that have with this from they will would there their what about which when make "
    "like time just know take people into year your good some could them other than then look "
    "only come over think also back after work first well even want because these give day most"
)
N_WORDS = len(_WORDS.split())


@dataclass(frozen=True)
class Form:
    """How requests are put."""

    is_chat: bool = False  # to `/v1/chat/completions`, whose prompts are text
    may_stop: bool = False  # an answer may end early; only standard fields are sent


class Text(NamedTuple):
    """A prompt as text, and its number of tokens by the client's count."""

    text: str
    n_tokens: int


@dataclass(slots=True)
class PreparedRequest:
    """A request's body, which fits any replica, and what it asks for."""

    request_id: str  # sent as `X-Request-ID`
    body: bytes = field(repr=False)  # JSON; dropped once it has been sent
    input_tokens: int
    output_tokens: int
    is_text: bool = False  # the prompt is text, of which the server counts the tokens
    may_stop: bool = False

    def wire(self, head: bytes) -> bytes:
        """Return all bytes of the request; `head` is the server's (`ServerAddress.head`)."""
        headers = f"X-Request-ID: {self.request_id}\r\nContent-Length: {len(self.body)}\r\n\r\n"
        return head + headers.encode() + self.body


def prepare(
    model_name: str,
    request_id: str,
    prompt: Sequence[int] | np.ndarray | Text,
    output_tokens: int,
    sampling: Mapping[str, float] | None = None,
    form: Form = Form(),
) -> PreparedRequest:
    """Encode a request. Its answer has exactly `output_tokens`, unless the form lets it stop early.

    `sampling` has the parameters of a request that is not sampled greedily.
    """
    is_text = isinstance(prompt, Text)
    content, n = prompt if isinstance(prompt, Text) else (np.asarray(prompt).tolist(), len(prompt))
    body: dict[str, Any] = {"model": model_name}
    if form.is_chat:
        body["messages"] = [{"role": "user", "content": content}]
    else:
        body["prompt"] = content
    body["max_tokens"] = output_tokens
    options = {"include_usage": True}
    if not form.may_stop:
        body |= {"min_tokens": output_tokens, "ignore_eos": True}
        options["continuous_usage_stats"] = True
    body |= {"temperature": 0, **(sampling or {}), "stream": True, "stream_options": options}
    encoded = msgspec.json.encode(body)
    return PreparedRequest(request_id, encoded, n, output_tokens, is_text, form.may_stop)


class Prompts(Protocol):
    """Makes the prompts of requests: token ids, or texts."""

    def prompts(
        self, lengths: Sequence[int] | np.ndarray, seed: int | np.random.SeedSequence
    ) -> Sequence[np.ndarray | Text]:
        """Return a prompt per length; same seed, same prompts."""


Drawn = Iterable[tuple[np.ndarray | Text, int, Mapping[str, float]]]
"""One row per request: its prompt, its output tokens, and its sampling parameters."""
Draw = Callable[[int, int, np.random.SeedSequence], Drawn]
"""Draws requests: the number of the first one, how many, and the seed of their block."""


class RequestSource:
    """Encodes requests ahead of time; the same seed gives the same bytes, whatever the timing."""

    n_prepared_late = 0  # requests encoded when due, because the prepared ones had run out

    def __init__(self, model_name: str, draw: Draw, seed: int, form: Form = Form()) -> None:
        self._model_name, self._draw, self._seed, self._form = model_name, draw, seed, form
        self._n_calls = 0

    def prepare(
        self, n_ahead: int, n_most: int | None = None, numbers: Iterable[int] | None = None
    ) -> None:
        """Start again: encode `n_ahead` requests, and keep `n_ahead` ready while they are taken.

        At most `n_most` will be taken. A replay takes its requests with these `numbers`.
        """
        self._n_calls += 1
        self._coming = self._requests(n_ahead) if numbers is None else map(self.one, numbers)
        self._ready = deque[PreparedRequest]()
        self._n_ahead, self._n_left, self.n_prepared_late = n_ahead, n_most, 0
        while self.top_up():
            pass

    def top_up(self) -> bool:
        """Encode one more request if one is missing; return whether there was."""
        if len(self._ready) >= self._n_ahead or self._n_left == 0:
            return False
        self._ready.append(self._next())
        return True

    def take(self) -> PreparedRequest:
        """Return the next request."""
        if self._ready:
            return self._ready.popleft()
        self.n_prepared_late += 1
        return self._next()

    def put_first(self, request: PreparedRequest) -> None:
        """Have this request taken next."""
        self._ready.appendleft(request)

    def one(self, number: int) -> PreparedRequest:
        """Encode a request of a replay, which needs no other block's seed."""
        seed = np.random.SeedSequence(self._seed, spawn_key=(self._n_calls, 0))
        return next(self._encoded(number, 1, seed))

    def _next(self) -> PreparedRequest:
        if self._n_left:
            self._n_left -= 1
        return next(self._coming)

    def _requests(self, n_first: int) -> Iterator[PreparedRequest]:
        """Yield requests without end; a block's seed depends on its number alone."""
        block = 0
        number = 0
        n = max(1, n_first)
        while True:
            seed = np.random.SeedSequence(self._seed, spawn_key=(self._n_calls, block))
            yield from self._encoded(number, n, seed)
            block = block + 1
            number = number + n
            n = _BLOCK

    def _encoded(
        self, first: int, n: int, seed: np.random.SeedSequence
    ) -> Iterator[PreparedRequest]:
        for number, request in enumerate(self._draw(first, n, seed), first):
            name = f"{self._seed}-{self._n_calls}-{number}"
            yield prepare(self._model_name, name, *request, self._form)


def drawn_from(model: "RequestModel", prompts: Prompts, sampler: str = "joint") -> Draw:
    """Return a function that draws the requests of a workload."""
    from pandas import isna  # here: requests of listed lengths need no pandas

    def draw(_: int, n: int, seed: np.random.SeedSequence) -> Drawn:
        request_seed, prompt_seed = seed.spawn(2)
        drawn = model.sample(n, seed=request_seed, sampler=sampler)
        contents = prompts.prompts(drawn["input_tokens"].to_numpy(), prompt_seed)
        for prompt, request in zip(contents, drawn.to_dict("records"), strict=True):
            # Greedy unless its parameters say otherwise.
            names = () if request.get("is_greedy") is True else _SAMPLING
            sampling = {name: request[name] for name in names if not isna(request.get(name))}
            yield prompt, int(request["output_tokens"]), sampling

    return draw


def draw_in_order(
    input_tokens: Sequence[int] | np.ndarray,
    output_tokens: Sequence[int] | np.ndarray,
    prompts: Prompts,
) -> Draw:
    """Return a function that gives requests of these lengths in turn, again and again."""
    inputs = np.asarray(input_tokens)
    outputs = np.asarray(output_tokens)

    def draw(first: int, n: int, seed: np.random.SeedSequence) -> Drawn:
        indices = np.arange(first, first + n) % len(inputs)
        contents = prompts.prompts(inputs[indices], seed)
        for prompt, n_output in zip(contents, outputs[indices].tolist(), strict=True):
            yield prompt, n_output, {}

    return draw


def replayed(blocks: "TraceBlocks", prompt_of: Callable[..., np.ndarray | Text]) -> Draw:
    """Return a function that gives the requests of a trace in its order, again and again.

    `prompt_of(request, *seed)` makes a prompt. Prompts of one seed share their beginnings as the
    inputs of the trace do; each level and each pass through the trace has its own seed. A request
    that failed in the trace asks for one token.
    """

    def draw(first: int, n: int, seed: np.random.SeedSequence) -> Drawn:
        for number in range(first, first + n):
            nth_time, request = divmod(number, len(blocks.ends))
            prompt = prompt_of(request, seed.entropy, seed.spawn_key[0], nth_time)
            yield prompt, max(int(blocks.output_tokens[request]), 1), {}

    return draw


def unsent_parameters(model: "RequestModel") -> list[str]:
    """Return the parameters of a workload that a request to the server cannot carry."""
    sent = {"input_tokens", "output_tokens", "is_greedy", *_SAMPLING}
    return [name for name in model.parameters if name not in sent]


class Texts:
    """Prompts as text that have exactly the wanted number of tokens by a tokenizer.

    They are cut from `ids`, if there are any, else drawn from common words. Without a tokenizer a
    word counts as a token.
    """

    def __init__(self, tokenizer: "Tokenizer | None", ids: CorpusTokens | None = None) -> None:
        self._tokenizer, self._ids = tokenizer, ids

    def prompts(
        self, lengths: Sequence[int] | np.ndarray, seed: int | np.random.SeedSequence
    ) -> list[Text]:
        """Return a prompt per length; same seed, same prompts.

        Raises InputError if no text of exactly that length was found.
        """
        if self._ids is not None and self._tokenizer is not None:
            cut = self._ids.prompts(lengths, seed)
            return [Text(prompt_text(self._tokenizer, ids), len(ids)) for ids in cut]
        rng = np.random.default_rng(seed)
        return [self.of_words(rng.integers(N_WORDS, size=length)) for length in lengths]

    def of_words(self, words: np.ndarray) -> Text:
        """Return a prompt with a token per word; `words` are numbers below `N_WORDS`."""
        text = " ".join(np.array(_WORDS.split())[words])
        length = len(words)
        if self._tokenizer is not None:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids[:length]
            text = prompt_text(self._tokenizer, np.array(ids))
        return Text(text, length)
