"""Answers by question: one that was asked before, or is being asked, is not computed again."""

import asyncio
import hashlib
from collections import OrderedDict

import msgspec

from sextant.serve.answering import Answered
from sextant.serve.pool import Pool
from sextant.serve.questions import Ask

_MOST_ANSWERS = 500
_MOST_BYTES = 256 * 2**20
"""Of answers that are kept; the least lately asked go first."""
_LASTING = (200, 422)
"""Statuses that are the same the next time."""


def id_of(ask: Ask) -> str:
    """Return what tells a question from others, e.g. in an address."""
    text = msgspec.json.encode([ask.command, ask.body, ask.has_page], order="sorted")
    return hashlib.sha256(text).hexdigest()


class Answers:
    """The answers of a server; alike questions at one moment share one worker."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._kept: OrderedDict[str, Answered] = OrderedDict()
        self._n_bytes = 0
        self._asked: dict[str, asyncio.Task[Answered]] = {}

    async def answer(self, ask: Ask) -> Answered:
        """Return the answer of a question, kept or new."""
        key = id_of(ask)
        if (kept := self.find(key)) is not None:
            return kept
        task = self._asked.get(key)
        if task is None:
            task = asyncio.create_task(self._pool.answer(ask))
            self._asked[key] = task
            task.add_done_callback(lambda done: self._keep(key, done))
        # A caller that hangs up ends neither the question nor the others that wait for it.
        return await asyncio.shield(task)

    def find(self, key: str) -> Answered | None:
        """Return a kept answer by the id of its question."""
        answered = self._kept.get(key)
        if answered is not None:
            self._kept.move_to_end(key)
        return answered

    def _keep(self, key: str, done: "asyncio.Task[Answered]") -> None:
        del self._asked[key]
        if done.cancelled() or done.exception() or done.result().status not in _LASTING:
            return
        self._kept[key] = done.result()
        self._n_bytes += done.result().n_bytes
        while len(self._kept) > _MOST_ANSWERS or self._n_bytes > _MOST_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._n_bytes -= oldest.n_bytes
