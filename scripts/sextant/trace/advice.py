"""What to do about a log that is not read: the fix of a refusal, and the likely mapping."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.resources import resource
from sextant.base.sheets import read_yaml
from sextant.trace.date_forms import FORMS
from sextant.trace.documents import RequestTest, flat_object
from sextant.trace.rules import MISSING, NO_STATUS, STATUSES, ZERO_OUTPUT
from sextant.trace.trace_format import (
    ALIASES,
    END,
    NEEDED_COLUMNS,
    TraceFormat,
    published_formats,
)

_LIKELY_FILE = resource("traces/likely_columns.yaml")
_TELLS_OUTCOME = re.compile(
    r"status|finish|error|code|outcome|success|result|stop_?reason|state|level", re.IGNORECASE
)
_TELLS_KIND = re.compile(
    r"type|kind|operation|endpoint|route|path|object|event|cache", re.IGNORECASE
)
_FEW = 5
_MOST_COUNTED = 12


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Rows that are malformed, of a source in which they are too many."""

    n_rejected: int
    n_requests: int
    n_accepted: int
    reasons: Mapping[str, int]  #: Rows by what is wrong with them.
    values: Counter[tuple[str, str]]  #: Rows by what is wrong and the cell.
    shown: Sequence[str]  #: The first ones: line, what is wrong, the cell.
    inputs: Sequence[str]  #: Formulas of an input with tokens that are left out.
    max_rejected_fraction: float


def refusal(
    refused: Refused, source: Path, form: TraceFormat, other_names: Sequence[str]
) -> InputError:
    """Return the error for too many malformed rows, with a fix that hides no failures.

    `other_names` are columns of the source that are not taken.
    """
    shown = "; ".join(refused.shown)
    problem = f"{refused.n_rejected:,} of {refused.n_requests:,} rows are malformed ({shown})"
    fixes = []
    if any(NO_STATUS in reason for reason in refused.reasons):
        words = [(value, n) for (reason, value), n in refused.values.items() if NO_STATUS in reason]
        words.sort(key=lambda item: -item[1])
        counted = ", ".join(f"{value!r} {n:,} times" for value, n in words[:_MOST_COUNTED])
        example = ",".join(f"{value}=failed" for value, _ in words[:2])
        fixes.append(
            f"say what each word means ({counted}), e.g. --status-words '{example}' "
            f"(`status_words` of a mapping file); a status is one of {STATUSES}"
        )
    tokens = [form.columns[name].text for name in NEEDED_COLUMNS[1:]]
    if form.is_log and any(f"{text}: {MISSING}" in refused.reasons for text in tokens):
        if "status" not in form.columns:
            fixes.append(
                "where failed requests lack tokens, map the column that says so (status=COLUMN"
                f"{_named(other_names, _TELLS_OUTCOME)})"
            )
        fixes.append(
            f"if requests without {'a status and ' * ('status' in form.columns)}tokens failed, "
            "--status-words null=failed counts them as failed"
        )
    if any(ZERO_OUTPUT in reason for reason in refused.reasons):
        fixes.append(
            "rows that are no generations (embeddings, answers of a cache) are left out with "
            f"--where COLUMN!=VALUE{_named(other_names, _TELLS_KIND)}"
        )
    if refused.inputs and any("below 1" in reason for reason in refused.reasons):
        fixes.append(f"tokens of a cache are left out: input_tokens={refused.inputs[0]} adds them")
    numbers = [reason for reason in refused.reasons if "not a number" in reason]
    arrival = form.columns["arrival_s"].text if "arrival_s" in form.columns else ""
    if not refused.n_accepted and f"{arrival}: not a number" in numbers:
        fixes.append("for arrivals that are date-times give --columns with --time-unit iso")
    elif numbers:
        fixes.append("a number is written 1234, 1234.5 or 1e3, without commas or units")
    if any("not a date and time" in reason for reason in refused.reasons):
        fixes.append(f"a date and time is {FORMS}")
    fixes.append(
        f"{'or ' if fixes else ''}correct them, or raise max_rejected_fraction "
        f"(`--max-rejected-fraction`), now {refused.max_rejected_fraction:g}"
        + ": what is set aside counts neither as served nor as failed"
        * bool(fixes)
    )
    return InputError(problem, file=source, fix="; ".join(fixes))


def _named(names: Sequence[str], pattern: re.Pattern[str]) -> str:
    """Return the columns that may be meant, in words."""
    likely = [name for name in names if pattern.search(name)][:_FEW]
    return f", here {' or '.join(likely)}" if likely else ""


@cache
def _likely_names() -> dict[str, list[str]]:
    return {target: list(names) for target, names in read_yaml(_LIKELY_FILE).items()}


def likely_mapping(names: Sequence[str]) -> dict[str, str]:
    """Return column of the trace -> column of a source that is likely it, by their names."""
    plain = {_plain(name): name for name in reversed(names)}
    by_end = {_plain(name.rpartition(".")[2]): name for name in reversed(names)}
    mapping: dict[str, str] = {}
    for target, likely in _likely_names().items():
        for name in map(_plain, likely):
            column = plain.get(name) or by_end.get(name)
            if column is not None and column not in mapping.values():
                mapping[target] = column
                break
    return mapping


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _has_likely(targets: Sequence[str], value: dict[str, Any]) -> bool:
    there = likely_mapping([*flat_object(value)])
    return any(target in there for target in targets)


LIKELY_REQUEST = RequestTest(
    partial(_has_likely, NEEDED_COLUMNS[1:]), partial(_has_likely, ("arrival_s", END))
)
"""How an object of JSON likely shows that it is a request."""


def likely_formats(names: Sequence[str]) -> list[str]:
    """Return the published formats that a source with these columns may have."""
    there = [*names, *(f"{name.partition('.')[0]}[]" for name in names)]
    fitting = []
    for name, form in published_formats().items():
        taken = {column for formula in form.formulas for column in formula.matching(there)}
        if form.missing(there) is None and len(form.sources(there)) > 2:
            fitting.append((len(taken), name))
    return [name for _, name in sorted(fitting, reverse=True)][:2]


def unnamed_source(source: Path, names: Sequence[str], shown: str) -> InputError:
    """Return the error for a source of which neither format nor columns are stated."""
    problem = f"neither --format nor --columns says how it is written; its columns are {shown}"
    formats = likely_formats(names)
    mapping = likely_mapping(names)
    written = {target: alias for alias, target in ALIASES.items()}
    line = ",".join(f"{written.get(target, target)}={name}" for target, name in mapping.items())
    lacking = [name for name in NEEDED_COLUMNS if name not in mapping]
    fixes = []
    if formats:
        fixes.append(f"it looks like --format {' or '.join(formats)}")
    if line:
        fixes.append(f"its columns are likely --columns '{line}'")
    if lacking:
        missing = ", ".join(written.get(name, name) for name in lacking)
        fixes.append(f"say in --columns which column is {missing} (a+b is a sum of columns)")
    return InputError(problem, file=source, field="--format, --columns", fix="; or ".join(fixes))
