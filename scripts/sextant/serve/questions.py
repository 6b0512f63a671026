"""A request's body becomes keywords of the library; its schema is made of the same options."""

import inspect
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

import sextant
from sextant.api.groups import OptionField, options_of
from sextant.base.errors import InputError
from sextant.serve.attachments import REFUSED, TRACE, WAYS, Attached, check_plain

COMMANDS = ("recommend", "capacity", "simulate", "rightsize")
"""The commands that can be asked, as functions of the library."""

_Row = dict[str, str | float | None]
_ATTACHED: dict[str, tuple[Any, str]] = {
    "hf_config": (str | dict[str, Any], "The object of a config.json, or a name of /v1/llms."),
    "draft_config": (str | dict[str, Any], "As hf_config, of the LLM that drafts."),
    "probe": (list[_Row], "Rows of what was measured, as objects."),
    "prices": (str | list[str | _Row], "Providers of /v1/prices, rows as objects, or both."),
    "api_prices": (str | list[str | _Row], "Providers that ship, `all`, rows as objects, or both."),
    "source": (str | list[str], "Names of characterizations that ship."),
    "workload": (str, "The name of a use case that ships."),
    "trace": (
        dict[str, str | float | bool],
        "A log: `text`, its `name`, and options of `sextant ingest` (`format`, `columns`, …). "
        "Or `base64` of a normalised trace (Parquet).",
    ),
    "metrics": (str | list[str], "Texts: snapshots of /metrics, or the JSON of range queries."),
    "policy": (str, "The text of its file."),
}
"""Of options that are paths on the command line: their type here, and what they mean."""


@dataclass(frozen=True)
class Ask:
    """A question that was asked of the server."""

    command: str
    body: Mapping[str, Any]
    has_page: bool = False
    """Whether its page and its deployment files are wanted, too."""


@cache
def options_by_keyword(command: str) -> dict[str, OptionField]:
    """Return the options of a command that may be stated in a request."""
    function: Callable[..., Any] = inspect.unwrap(getattr(sextant, command))
    return {
        option.keyword: option for option in options_of(function) if option.keyword not in REFUSED
    }


def keywords_of(ask: Ask) -> tuple[dict[str, Any], Attached]:
    """Return the keywords of a question, with names of files in place of paths, and the files.

    Raises InputError: an option would read the server's disk or call somebody, or what it attaches
    is of the wrong form.
    """
    attached = Attached()
    keywords = {}
    for keyword, value in ask.body.items():
        if value is None:
            continue
        if keyword in REFUSED:
            problem = "the server reads and writes no files of its own, and calls nobody"
            raise InputError(problem, field=keyword, fix=REFUSED[keyword])
        if keyword in WAYS:
            keywords[keyword] = WAYS[keyword](keyword, value, attached)
            continue
        check_plain(keyword[:80], value)
        keywords[keyword] = value
    return keywords, attached


def body_schema(command: str) -> dict[str, Any]:
    """Return the JSON schema of a command's body."""
    fields: dict[str, Any] = {}
    for keyword, option in options_by_keyword(command).items():
        kind, _ = _ATTACHED.get(keyword, (_kind_in_json(option), ""))
        default = ... if option.default is inspect.Parameter.empty else option.default
        if default is None:
            kind = kind | None
        elif default == math.inf:  # JSON has no such number
            default = None
        info = option.info
        least, most = getattr(info, "min", None), getattr(info, "max", None)
        fields[keyword] = (kind, Field(default, description=help_of(option), ge=least, le=most))
    config = ConfigDict(extra="forbid")
    model: type[BaseModel] = create_model(command.title(), __config__=config, **fields)
    schema = model.model_json_schema()
    for said in schema["properties"].values():
        if said.get("default", ...) is None:
            del said["default"]
    return schema


def help_of(option: OptionField) -> str:
    """Return what an option means in a request, which names no path."""
    _, description = _ATTACHED.get(option.keyword, (None, option.info.help))
    return description


def _kind_in_json(option: OptionField) -> Any:
    """Return what JSON may have for an option: also a number for a text, one text for a list."""
    kind: Any = None
    for part in option.kinds:
        part = {str: str | float, list[str]: str | list[str]}.get(part, part)
        kind = part if kind is None else kind | part
    return kind


def script_of(ask: Ask) -> str:
    """Return the commands that give the same answer, in a folder with the question's files."""
    keywords, attached = keywords_of(ask)
    lines = []
    if attached.log is not None:
        words = ["sextant", "ingest", attached.log, "--out", TRACE]
        lines.append(_line(words, attached.log_options, options_by_keyword("ingest")))
    options = options_by_keyword(ask.command)
    lines.append(_line(["sextant", ask.command], keywords, options))
    return "\n".join(lines) + "\n"


def _line(words: list[str], keywords: Mapping[str, Any], options: Mapping[str, OptionField]) -> str:
    """Return a command with these options."""
    parts = [shlex.join(words)]
    for keyword, value in keywords.items():
        name = "--" + keyword.replace("_", "-")
        if bool in options[keyword].kinds:
            if value != options[keyword].default:
                parts.append(name if value else f"--no-{name[2:]}")
            continue
        is_list = any(kind in (list[str], list[Path]) for kind in options[keyword].kinds)
        values = value if is_list and isinstance(value, list) else [value]
        for one in values:
            text = ",".join(map(str, one)) if isinstance(one, list) else str(one)
            parts.append(f"{name} {shlex.quote(text)}")
    return " ".join(parts)
