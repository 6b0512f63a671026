"""Sheets and configuration: read, typed and validated row by row before anything runs."""

import csv
import io
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

from sextant.base.errors import InputError
from sextant.base.ids import id_problem, look, selectable_problem
from sextant.base.yaml_files import read_yaml

# The schemas of sheets, of `config.yaml` and of GPU facts.
SCHEMAS = Path(__file__).parents[3] / "workflow" / "schemas"


class Row(dict[str, Any]):
    """A row of a sheet by column, and the line it stands in (the header is line 1)."""

    def __init__(self, values: Mapping[str, Any], line: int) -> None:
        super().__init__(values)
        self.line = line


_PARSERS = {"integer": int, "number": float, "string": str}
_ID_PROBLEMS = {"id": id_problem, "selectable-id": selectable_problem}
"""What a schema's `format` asks of a text."""
_FORMATS = FormatChecker(formats=())
for _name, _problem in _ID_PROBLEMS.items():
    _FORMATS.checks(_name)(lambda text, problem=_problem: problem(text) is None)


@cache
def _validator(schema_path: Path) -> Draft202012Validator:
    return Draft202012Validator(read_yaml(schema_path), format_checker=_FORMATS)


def validate(value: Mapping[str, Any], schema_path: str | Path, file: str | Path) -> None:
    """Check a mapping against a schema.

    Raises:
        InputError: names the first field that does not fit and what the schema says of it.
    """
    _check(value, _validator(Path(schema_path)), file, None)


def _check(value: Mapping, validator: Draft202012Validator, file: str | Path, row: int | None):
    errors = sorted(validator.iter_errors(value), key=lambda error: list(map(str, error.path)))
    for error in errors:
        field = ".".join(str(part) for part in error.absolute_path) or None
        description = error.schema.get("description") if isinstance(error.schema, dict) else None
        if error.validator == "additionalProperties":
            unknown = sorted(set(error.instance) - set(error.schema.get("properties", {})))
            field = ".".join([*([field] if field else []), unknown[0]])
            known = ", ".join(error.schema["properties"])
            fix = f"remove it or correct its name; known here: {known}"
            raise InputError("unknown field", file=file, row=row, field=field, fix=fix)
        if error.validator == "required":
            missing = next(name for name in error.validator_value if name not in error.instance)
            field = ".".join([*([field] if field else []), missing])
            description = error.schema["properties"].get(missing, {}).get("description")
            raise InputError("it is missing", file=file, row=row, field=field, fix=description)
        problem = error.message
        if error.validator == "format":
            problem = f"{error.instance!r} {_ID_PROBLEMS[error.validator_value](error.instance)}"
        raise InputError(problem, file=file, row=row, field=field, fix=description)


def load_sheet(
    path: str | Path, schema_path: str | Path, key: str | None = None, *, delimiter: str = "\t"
) -> list[Row]:
    """Read a tab-separated sheet; each row is a dict typed and checked by the schema.

    An empty cell is a missing value: the key is left out of the row. Lines that start
    with `#` are comments. With `key`, values of that column have to be unique, and alike not
    even but for case or Unicode normal form, which file systems may not tell apart.

    Raises:
        InputError: names file, line, field and the fix.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        fix = "create the sheet or correct its path in the configuration"
        raise InputError(f"cannot be read ({error.strerror})", file=path, fix=fix) from None
    except UnicodeDecodeError as error:
        raise InputError(f"no UTF-8 ({error})", file=path, fix="save it as UTF-8") from None
    validator = _validator(Path(schema_path))
    properties = validator.schema["properties"]
    lines = [
        (number, line)
        for number, line in enumerate(io.StringIO(text), 1)
        if line.strip() and not line.startswith("#")
    ]
    if not lines:
        raise InputError("the sheet is empty", file=path, fix="add its header line")
    header = _header(path, lines[0], validator, delimiter)
    rows: list[Row] = []
    seen: dict[str, Row] = {}
    for number, line in lines[1:]:
        cells = _split(path, number, line, delimiter)
        if len(cells) != len(header):
            name = "tab" if delimiter == "\t" else "comma"
            fix = f"separate the columns with one {name} each"
            problem = f"{len(cells)} cells under {len(header)} columns"
            raise InputError(problem, file=path, row=number, fix=fix)
        cells = dict(zip(header, map(str.strip, cells), strict=True))
        typed = {
            column: _typed(cell, properties[column], path, number, column)
            for column, cell in cells.items()
            if cell
        }
        row = Row(typed, number)
        _check(row, validator, path, number)
        if key and (other := seen.setdefault(look(row[key]), row)) is not row:
            alike = "" if row[key] == other[key] else f" as {other[key]!r}, which looks alike,"
            problem = f"{row[key]!r} stands in line {other.line}{alike} already"
            raise InputError(problem, file=path, row=number, field=key, fix="rename one")
        rows.append(row)
    if not rows:
        raise InputError("the sheet has no rows", file=path, fix="add one below the header")
    return rows


def _split(path: Path, number: int, line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r\n")], delimiter=delimiter))
    except csv.Error as error:
        raise InputError(str(error), file=path, row=number, fix="shorten the row") from None


def _header(
    path: Path, first: tuple[int, str], validator: Draft202012Validator, delimiter: str
) -> list[str]:
    number, line = first
    header = [name.strip() for name in line.rstrip("\r\n").split(delimiter)]
    known, required = validator.schema["properties"], validator.schema.get("required", [])
    for name in header:
        if name not in known:
            fix = f"remove it or correct its name; known: {', '.join(known)}"
            raise InputError("unknown column", file=path, row=number, field=name, fix=fix)
        if header.count(name) > 1:
            raise InputError("column twice", file=path, row=number, field=name, fix="remove one")
    for name in required:
        if name not in header:
            fix = f"add it: {known[name].get('description', '')}"
            raise InputError("column missing", file=path, row=number, field=name, fix=fix)
    return header


def _typed(cell: str, schema: Mapping[str, Any], path: Path, row: int, field: str) -> Any:
    kind = schema["type"]
    try:
        value = _PARSERS[kind](cell)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
        return value
    except ValueError:
        fix = schema.get("description")
        problem = f"{cell!r} is no {kind}"
        raise InputError(problem, file=path, row=row, field=field, fix=fix) from None
