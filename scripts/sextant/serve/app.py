"""The routes: questions over HTTP with their schema, and the page with what it downloads."""

import io
import json
import re
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

import sextant
from sextant.base.errors import InputError
from sextant.serve.answering import Answered
from sextant.serve.catalogue import CATALOGUES
from sextant.serve.guard import Guard, Refusal, read_question
from sextant.serve.kept import Answers, id_of
from sextant.serve.page import asking_page
from sextant.serve.pool import Pool, PoolLimits
from sextant.serve.questions import COMMANDS, Ask, body_schema

_JSON = "application/json"
_ERRORS = {
    400: "The body is no JSON object.",
    401: "A token is needed.",
    413: "The body is too large.",
    415: "The body is not JSON by its type, or compressed.",
    422: "The library's error: problem, field and fix.",
    429: "Too many questions wait.",
    504: "The question took longer than the deadline.",
}
_ERROR_SCHEMA = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                **{
                    name: {"type": ["string", "null"]}
                    for name in ("problem", "file", "field", "fix", "message")
                },
                "row": {"type": ["integer", "null"]},
            },
        }
    },
}
_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What a server is told at its start."""

    pool: PoolLimits
    token: str | None = None


def create_app(settings: ServerSettings) -> Guard:
    """Return the application, behind its guard."""
    pool = Pool(settings.pool)
    answers = Answers(pool)

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        pool.start()
        try:
            yield
        finally:
            pool.close()

    app = FastAPI(
        title="Sextant",
        version=sextant.__version__,
        description="Which GPU, and how many, serve an LLM within its latency targets at the "
        "lowest cost. Keys of a question are the options of the command line, with underscores; "
        "an answer is the JSON of the command.",
        lifespan=running,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
    )
    app.include_router(_questions(answers))
    app.include_router(_page(answers))

    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(HTTPException, _no_route)
    return Guard(app, settings.token)


async def _refused(_: Request, refusal: Any) -> Response:
    response: Response = refusal.response()
    return response


async def _no_route(_: Request, error: Any) -> Response:
    """Return the error of an address that is not there, or is asked in another way."""
    refusal = InputError(str(error.detail), fix="/openapi.json has the addresses")
    return Refusal(error.status_code, refusal).response()


def _questions(answers: Answers) -> APIRouter:
    """Return the routes of programs."""
    router = APIRouter(prefix="/v1")
    for command in COMMANDS:
        router.add_api_route(
            f"/{command}",
            _asking(answers, command),
            methods=["POST"],
            name=command,
            summary=_first_sentence(command),
            openapi_extra={
                "requestBody": {
                    "required": True,
                    "content": {_JSON: {"schema": body_schema(command)}},
                }
            },
            responses=_responses("The JSON of the command."),
            response_class=Response,
        )
    for name in CATALOGUES:
        router.add_api_route(
            f"/{name}",
            _listing(answers, name),
            methods=["GET"],
            name=name,
            summary=_first_line(CATALOGUES[name].__doc__),
            responses=_responses("A list of objects."),
            response_class=Response,
        )
    return router


def _responses(answer: str) -> dict[int | str, dict[str, Any]]:
    """Return the descriptions of replies by status."""
    errors: dict[int | str, dict[str, Any]] = {
        status: {"description": words, "content": {_JSON: {"schema": _ERROR_SCHEMA}}}
        for status, words in _ERRORS.items()
    }
    return {200: {"description": answer, "content": {_JSON: {}}}, **errors}


def _first_sentence(command: str) -> str:
    return _first_line(getattr(sextant, command).__doc__)


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0].removeprefix("Return ").capitalize()


def _asking(answers: Answers, command: str) -> Any:
    async def ask(request: Request) -> Response:
        return _response(await answers.answer(Ask(command, await read_question(request))))

    return ask


def _listing(answers: Answers, name: str) -> Any:
    async def listed() -> Response:
        return _response(await answers.answer(Ask(name, {})))

    return listed


def _response(answered: Answered) -> Response:
    headers = {"Retry-After": "5"} if answered.status == 429 else {}
    return Response(answered.content, answered.status, headers, _JSON)


def _page(answers: Answers) -> APIRouter:
    """Return the routes of the page, which programs need not know."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def page() -> Response:
        html, policy = asking_page()
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    @router.post("/answers/{command}")
    async def ask(command: str, request: Request) -> Response:
        if command not in COMMANDS:
            raise _missing()
        question = Ask(command, await read_question(request), has_page=True)
        answered = await answers.answer(question)
        if answered.status != 200:
            return _response(answered)
        facts = {"id": id_of(question), "script": answered.script, "bundles": [*answered.bundles]}
        return Response(json.dumps(facts), media_type=_JSON)

    @router.get("/answers/{key}/{name}")
    async def part(key: str, name: str) -> Response:
        answered = answers.find(key) if _ID.fullmatch(key) else None
        if answered is None:
            raise _missing()
        if name == "answer.html":
            return HTMLResponse(answered.page)
        if name == "answer.json":
            return Response(answered.content, media_type=_JSON, headers=_attached(name))
        if name == "question.zip":
            files = {"ask.sh": answered.script.encode(), **answered.files}
            return _zip(files, name)
        target = name.removesuffix(".zip")
        if target not in answered.bundles:
            raise _missing()
        texts = answered.bundles[target]
        return _zip({file: text.encode() for file, text in texts.items()}, name)

    return router


def _missing() -> Refusal:
    return Refusal(404, InputError("there is no such answer", fix="ask the question again"))


def _attached(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def _zip(files: Mapping[str, bytes], name: str) -> Response:
    """Return files as an archive, the same bytes for the same files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in files.items():
            archive.writestr(zipfile.ZipInfo(file), content, zipfile.ZIP_DEFLATED)
    return Response(out.getvalue(), media_type="application/zip", headers=_attached(name))
