"""One question, answered in a worker: an empty folder, a bound on memory, no call to anybody.

This module imports what questions import, so that workers that are forked from a process that has
loaded it (`pool`) answer without loading anything.
"""

import json
import os
import resource
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

import sextant
import sextant.capacity.capacity
import sextant.capacity.document
import sextant.capacity.simulation
import sextant.deploy.files
import sextant.pages.page
import sextant.recommend.document
import sextant.recommend.recommend
import sextant.rightsize.rightsize
from sextant.api.shown import ShownAnswer
from sextant.api.traces import ingest
from sextant.base.errors import InputError
from sextant.base.threads import one_thread
from sextant.deploy.targets import TARGETS
from sextant.serve.attachments import TRACE, Attached
from sextant.serve.catalogue import CATALOGUES
from sextant.serve.questions import Ask, keywords_of, script_of

_MOST_MEMORY = 6 * 2**30
"""Bytes that a worker may have, above which its question is ended: questions take 0.5 GiB."""
_MOST_FILE = 2**30
"""Bytes of the largest file that a question may write."""
_LONGEST_WORDS = 500
"""Letters of each part of an error."""
WARM = Ask(
    "recommend",
    {
        "hf_config": "meta-llama__Llama-3.1-8B-Instruct",
        "request_rate": 8,
        "input_tokens": 1500,
        "output_tokens": 250,
        "ttft_ms": "p95:1000",
        "tpot_ms": 40,
    },
    has_page=True,
)
"""README's question, which a worker answers before it is ready: what it reads is kept."""


class Answered(msgspec.Struct, frozen=True):
    """What the server keeps of an answer."""

    status: int
    """Of HTTP: 200, or that of an error."""
    content: str
    """The JSON of the command, or of the error."""
    page: str = ""
    """The page of the answer, with what-if; empty where it was not asked for."""
    script: str = ""
    """The commands that give the same."""
    files: dict[str, bytes] = {}
    """Files that these commands read."""
    bundles: dict[str, dict[str, str]] = {}
    """Files of its deployment: by target, then by name."""

    @property
    def n_bytes(self) -> int:
        """Its size in memory, about."""
        texts = len(self.content) + len(self.page) + len(self.script)
        return texts + sum(map(len, self.files.values()))


def error_reply(status: int, error: InputError) -> Answered:
    """Return an error of the library as JSON, with its field and fix; files go by their names."""
    if error.file is not None:
        error = error.at(file=Path(error.file).name)
    parts: dict[str, Any] = {
        "problem": error.problem,
        "file": error.file,
        "row": error.row,
        "field": error.field,
        "fix": error.fix,
        "message": str(error),
    }
    short = {
        name: f"{part[:_LONGEST_WORDS]}…"
        if isinstance(part, str) and len(part) > _LONGEST_WORDS
        else part
        for name, part in parts.items()
    }
    return Answered(status, json.dumps({"error": short}))


def answer(ask: Ask) -> Answered:
    """Return the answer of a question, or its error; a fault of ours is logged and has status 500.

    The working folder is that of the question while it is answered.
    """
    try:
        if ask.command in CATALOGUES:
            return Answered(200, json.dumps(CATALOGUES[ask.command]()))
        keywords, attached = keywords_of(ask)
        with _folder_of(attached):
            _ingest(attached)
            shown: ShownAnswer = getattr(sextant, ask.command)(**keywords)
            return _reply(ask, shown, attached)
    except InputError as error:
        return error_reply(422, error)
    except MemoryError:
        problem = "the question needs more memory than a worker may have"
        return error_reply(422, InputError(problem, fix="ask about less traffic"))
    except Exception:
        traceback.print_exc()
        problem = "the server failed; its log says why"
        return error_reply(500, InputError(problem, fix="report it with the question"))


def _reply(ask: Ask, shown: ShownAnswer, attached: Attached) -> Answered:
    content = json.dumps(shown.to_dict(), allow_nan=False)
    if not ask.has_page:
        return Answered(200, content)
    page = shown.to_html()
    return Answered(200, content, page, script_of(ask), attached.files, _bundles(shown))


def _bundles(shown: ShownAnswer) -> dict[str, dict[str, str]]:
    """Return the files that start an answer, for each target that can."""
    bundles: dict[str, dict[str, str]] = {}
    for target in TARGETS if shown.deployments() else ():
        # The command of another engine than that of the answer, or what a platform cannot do.
        with suppress(InputError):
            bundles[target] = shown.deployment(target)
    return bundles


@contextmanager
def _folder_of(attached: Attached) -> Iterator[None]:
    """Work in an empty folder that has the files of a question, and nothing else."""
    with TemporaryDirectory(prefix="question-", ignore_cleanup_errors=True) as folder:
        for name, content in attached.files.items():
            (Path(folder) / name).write_bytes(content)
        before = Path.cwd()
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _ingest(attached: Attached) -> None:
    """Make the trace of a question's log, if it has one."""
    if attached.log is None:
        return
    try:
        ingest(attached.log, out=TRACE, **attached.log_options)
    except InputError as error:
        raise error.at(field=error.field and f"trace.{error.field}") from None


def work(connection: Connection, folder: str) -> None:
    """Answer questions of the server until it is gone."""
    _bind(Path(folder))
    with one_thread(), suppress(EOFError, OSError):  # workers share the cores
        answer(WARM)
        connection.send_bytes(b"ready")
        while True:
            ask = msgspec.json.decode(connection.recv_bytes(), type=Ask)
            connection.send_bytes(msgspec.json.encode(answer(ask)))
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # a usual end waits for threads of libraries, which the fork has left behind


def _bind(folder: Path) -> None:
    """Bound this process: its memory, its files, its folder; it calls nobody, whatever is asked."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends its workers
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_FILE, _MOST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["TMPDIR"] = str(folder)
    os.chdir(folder)

    def refuse_calls(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
            raise InputError("the server calls nobody", fix="give files in place of an address")

    sys.addaudithook(refuse_calls)
