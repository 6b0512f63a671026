"""Workers that answer one question at a time and can be ended; the queue before them."""

import asyncio
import multiprocessing
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from sextant.base.errors import InputError
from sextant.serve.answering import Answered, error_reply, work
from sextant.serve.questions import Ask

_START_S = 300.0
"""Longest time until a worker is ready; two seconds where nothing else runs."""


@dataclass(frozen=True, kw_only=True)
class PoolLimits:
    """How much is answered at once."""

    workers: int
    waiting: int = 32
    """Questions that wait for a worker; more are refused (429)."""
    deadline_s: float = 300.0
    """Longest time of a question in its worker, after which it is ended."""


class Worker:
    """A process that answers questions; one that is ended is replaced at the next question."""

    def __init__(self, folder: Path, context: multiprocessing.context.BaseContext) -> None:
        self._folder = folder
        self._context = context
        self._has_ended = False
        self._start()

    def _start(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        self._connection, theirs = self._context.Pipe()
        # Process is an attribute of each context, which typeshed has of the concrete ones alone.
        self._process = self._context.Process(  # type: ignore[attr-defined]
            target=work, args=(theirs, str(self._folder)), daemon=True
        )
        self._process.start()
        theirs.close()
        self._is_ready = False

    def answer(self, ask: Ask, deadline_s: float) -> Answered:
        """Return the answer; one that takes longer than the deadline is ended, with status 504."""
        try:
            if not self._is_ready:
                if not self._connection.poll(_START_S):
                    raise EOFError
                self._connection.recv_bytes()
                self._is_ready = True
            self._connection.send_bytes(msgspec.json.encode(ask))
            if self._connection.poll(deadline_s):
                return msgspec.json.decode(self._connection.recv_bytes(), type=Answered)
            problem = f"the question takes longer than {deadline_s:g} s"
            error = InputError(problem, fix="ask about less, or on the command line")
            reply = error_reply(504, error)
        except (EOFError, OSError):
            error = InputError("the worker of this question ended", fix="ask about less")
            reply = error_reply(500, error)
        self._stop()
        if not self._has_ended:
            self._start()
        return reply

    def end(self) -> None:
        """End the process for good."""
        self._has_ended = True
        self._stop()

    def _stop(self) -> None:
        """End the process and remove what it wrote."""
        self._process.kill()
        self._process.join()
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Pool:
    """The workers of a server. Use it in one event loop."""

    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self._n_waiting = 0
        self._scratch = TemporaryDirectory(prefix="sextant-serve-", ignore_cleanup_errors=True)
        # Each worker is forked from a process that has imported all, and has no threads of ours.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["sextant.serve.answering"])
        self._threads = ThreadPoolExecutor(limits.workers)
        self._workers: list[Worker] = []
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()

    def start(self) -> None:
        """Start the workers, which get ready by themselves."""
        folder = Path(self._scratch.name)
        for number in range(self.limits.workers):
            worker = Worker(folder / str(number), self._context)
            self._workers.append(worker)
            self._idle.put_nowait(worker)

    @property
    def n_waiting(self) -> int:
        """Questions that wait for a worker."""
        return self._n_waiting

    async def answer(self, ask: Ask) -> Answered:
        """Return the answer of a question, or status 429 where too many wait."""
        if self._n_waiting >= self.limits.waiting and self._idle.empty():
            problem = f"{self._n_waiting} questions wait already"
            return error_reply(429, InputError(problem, fix="ask again in some seconds"))
        self._n_waiting += 1
        try:
            worker = await self._idle.get()
        finally:
            self._n_waiting -= 1
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._threads, worker.answer, ask, self.limits.deadline_s
            )
        finally:
            self._idle.put_nowait(worker)

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.end()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._scratch.cleanup()


def available_cpus() -> int:
    """Return the CPUs that this process may use."""
    return len(os.sched_getaffinity(0))
