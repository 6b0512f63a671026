"""Sheets and YAML: read, typed and checked; configuration merged as Snakemake does."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, FormatChecker, ValidationError

from sextant import PROJECT
from sextant.base.errors import InputError
from sextant.base.files import atomic_path
from sextant.base.ids import id_problem, look, selectable_problem

# The schemas of sheets, of `config.yaml` and of GPU facts.
SCHEMAS = PROJECT / "workflow" / "schemas"


class Row(dict[str, Any]):
    """The values of a sheet's row by column, and its line (the header is line 1)."""

    def __init__(self, values: Mapping[str, Any], line: int) -> None:
        super().__init__(values)
        self.line = line


_PARSERS: dict[str, Callable[[str], Any]] = {"integer": int, "number": float, "string": str}
_ID_PROBLEMS = {"id": id_problem, "selectable-id": selectable_problem}
"""What is wrong with a text, by the schema's `format`; None if nothing is."""
_FORMATS = FormatChecker(formats=())
for _name, _problem in _ID_PROBLEMS.items():
    _FORMATS.checks(_name)(lambda text, problem=_problem: problem(text) is None)


@cache
def _schema(path: Path) -> dict[str, Any]:
    return read_yaml(path)


@cache
def _validator(path: Path) -> Draft202012Validator:
    return Draft202012Validator(_schema(path), format_checker=_FORMATS)


def validate(
    value: Mapping[str, Any], schema_path: str | Path, file: str | Path, row: int | None = None
) -> None:
    """Check a mapping, read from a file or one of its rows, against a schema.

    Raises InputError with the first field that does not fit and what the schema says about it.
    """
    errors = _validator(Path(schema_path)).iter_errors(value)
    error = min(errors, key=lambda error: list(map(str, error.path)), default=None)
    if error:
        field, problem, fix = _explained(error)
        raise InputError(problem, file=file, row=row, field=field or None, fix=fix)


def _explained(error: ValidationError) -> tuple[str, str, str | None]:
    place = list(map(str, error.absolute_path))
    schema = error.schema if isinstance(error.schema, Mapping) else {}
    known = schema.get("properties", {})
    # Both are set in every error that a validator finds.
    given: Any = error.instance
    asked: Any = error.validator_value
    if error.validator == "additionalProperties":
        unknown = min(str(name) for name in given if name not in known)
        fix = f"remove it or correct its name; known here: {', '.join(known)}"
        return ".".join([*place, unknown]), "unknown field", fix
    if error.validator == "required":
        missing = next(name for name in asked if name not in given)
        fix = known.get(missing, {}).get("description")
        return ".".join([*place, missing]), "it is missing", fix
    problem = error.message
    if error.validator == "pattern":
        problem = f"{given!r} is not of the form that this field takes"
    if error.validator == "format":
        problem = f"{given!r} {_ID_PROBLEMS[asked](given)}"
    return ".".join(place), problem, schema.get("description")


def load_sheet(
    path: str | Path, schema_path: str | Path, key: str | None = None, *, delimiter: str = "\t"
) -> list[Row]:
    """Read a tab-separated sheet; each row is a dict typed and checked by the schema.

    An empty cell is a missing value: the key is left out of the row. Lines that start
    with `#` are comments. With `key`, values of that column have to be unique, and differ by more
    than case or Unicode normal form, which not every file system tells apart. Raises InputError.
    """
    path, properties = Path(path), _schema(Path(schema_path))["properties"]
    rows: list[Row] = []
    seen: dict[str, Row] = {}
    for cells in sheet_cells(path, schema_path, delimiter=delimiter):
        number = cells.line
        row = Row(
            {
                column: typed(cell, properties[column], path, number, column)
                for column, cell in cells.items()
                if cell
            },
            number,
        )
        validate(row, schema_path, path, number)
        if key and (other := seen.setdefault(look(row[key]), row)) is not row:
            alike = "" if row[key] == other[key] else f" as {other[key]!r}, which looks alike"
            problem = f"{row[key]!r} is already in line {other.line}{alike}"
            raise InputError(problem, file=path, row=number, field=key, fix="rename one")
        rows.append(row)
    if not rows:
        raise InputError("the sheet has no rows", file=path, fix="add one below the header")
    return rows


def sheet_cells(path: str | Path, schema_path: str | Path, *, delimiter: str = "\t") -> list[Row]:
    """Return the rows of a sheet as texts, whose columns alone were checked by the schema.

    Raises:
        InputError: the file cannot be read, or a column is unknown, missing or there twice.
    """
    path = Path(path)
    (first, *others) = _lines(path)
    header = _header(path, first, _schema(Path(schema_path)), delimiter)
    return [Row(_cells(path, number, line, header, delimiter), number) for number, line in others]


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        fix = "create the sheet or correct its path in the configuration"
        raise InputError(f"cannot be read ({error.strerror})", file=path, fix=fix) from None
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 ({error})", file=path, fix="save it as UTF-8") from None
    numbered = enumerate(io.StringIO(text), 1)
    lines = [(n, line) for n, line in numbered if line.strip() and not line.startswith("#")]
    if not lines:
        raise InputError("the sheet is empty", file=path, fix="add its header line")
    return lines


def _cells(path: Path, number: int, line: str, header: list[str], delimiter: str) -> dict[str, str]:
    try:
        cells = next(csv.reader([line.rstrip("\r\n")], delimiter=delimiter))
    except csv.Error as error:
        raise InputError(str(error), file=path, row=number, fix="shorten the row") from None
    if len(cells) != len(header):
        problem = f"{len(cells)} cells under {len(header)} columns"
        raise InputError(problem, file=path, row=number, fix=_separate(delimiter))
    return dict(zip(header, map(str.strip, cells), strict=True))


def _separate(delimiter: str) -> str:
    name = "tab" if delimiter == "\t" else "comma"
    return f"separate the columns with one {name} each; spaces do not count"


def _header(
    path: Path, first: tuple[int, str], schema: Mapping[str, Any], delimiter: str
) -> list[str]:
    number, line = first
    header = [name.strip() for name in line.rstrip("\r\n").split(delimiter)]
    known = schema["properties"]
    for name in header:
        if len(others := re.split(r"[\s,;]+", name)) > 1 and known.keys() & set(others):
            problem = f"{name!r} is one column, and holds several names"
            raise InputError(problem, file=path, row=number, fix=_separate(delimiter))
        if name not in known:
            fix = f"remove it or correct its name; known: {', '.join(known)}"
            raise InputError("unknown column", file=path, row=number, field=name, fix=fix)
        if header.count(name) > 1:
            raise InputError("column twice", file=path, row=number, field=name, fix="remove one")
    for name in schema.get("required", []):
        if name not in header:
            fix = f"add it: {known[name].get('description', '')}"
            raise InputError("column missing", file=path, row=number, field=name, fix=fix)
    return header


def typed(cell: str, schema: Mapping[str, Any], path: Path, row: int, field: str) -> Any:
    """Return a cell's value, of the type that the column's schema says.

    Raises:
        InputError: it is of another type; names the place.
    """
    kind = schema["type"]
    try:
        value = _PARSERS[kind](cell)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
        return value
    except ValueError:
        fix = schema.get("description")
        problem = f"{cell!r} is not {'an' if kind == 'integer' else 'a'} {kind}"
        raise InputError(problem, file=path, row=row, field=field, fix=fix) from None


_MAX_BYTES = 2**18


class _Loader(yaml.SafeLoader):
    """Refuses aliases: ten lines of them stand for gigabytes; and a key that is there twice."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.YAMLError(f"line {mark.line + 1}: aliases such as *name are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if (other := seen.get(str(key.value))) is not None:
                problem = f"line {line}: the key {key.value!r} is already in line {other}"
                raise yaml.YAMLError(f"{problem}; keep one of them")
            seen[str(key.value)] = line
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file of keys and values.

    Raises InputError if it is anything else, has aliases, or more than 256 KiB.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise yaml.YAMLError(f"it has more than {_MAX_BYTES >> 10} KiB")
        found = _Loader(content.decode()).get_single_data()
    except OSError as error:
        fix = "correct its path"
        raise InputError(f"cannot be read ({error.strerror})", file=path, fix=fix) from None
    # ValueError: no UTF-8, or a date or a number that Python does not have.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = f"not YAML ({' '.join(str(error).split())})"
        raise InputError(problem, file=path, fix="correct the file") from None
    if not isinstance(found, dict | None):
        raise InputError("no keys and values", file=path, fix="write key: value")
    return found or {}


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Write keys and values in the order given; the file appears whole or not at all."""
    with atomic_path(path) as temporary:
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
        temporary.write_text(text, encoding="utf-8")


def yaml_documents(contents: Sequence[Mapping[str, Any]]) -> str:
    """Return documents in one text; what two places share is written in both, not as an alias."""
    return yaml.safe_dump_all(json.loads(json.dumps(contents)), sort_keys=False)


DEFAULT_FILE = "config/config.yaml"
"""The file that the Snakefile names; others are merged into it."""


def read_configuration(folder: Path, config_files: Sequence[Path] = ()) -> dict[str, Any]:
    """Read the Snakefile's configuration in a folder and merge others into it; the last wins."""
    if not (folder / DEFAULT_FILE).is_file():
        fix = "run this in the project's folder"
        raise InputError("there is no such file here", file=DEFAULT_FILE, fix=fix)
    return merged(read_yaml(folder / file) for file in [Path(DEFAULT_FILE), *config_files])


def merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge configurations key by key, also below keys; later ones win."""
    config: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            before = config.get(key)
            if isinstance(value, Mapping) and isinstance(before, Mapping):
                value = merged([before, value])
            config[key] = value
    return config
