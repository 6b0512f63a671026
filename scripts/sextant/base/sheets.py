"""Sheets and YAML: read, typed and checked; configuration merged as Snakemake does.

A dataclass says what a row of a sheet or a file may hold. The annotations of its fields have types,
bounds and patterns (pydantic's). The docstring below a field, or the comment beside it that begins
with `#:`, says what to write. Messages quote both, and `make schemas` writes the schemas for
editors from them.

Ids of sheets may be almost any text: results, the store and reports hold ids; folders, files,
Snakemake's wildcards, job comments and names of logs hold the safe file names made of them.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import pydantic
import yaml
from pydantic_core import ErrorDetails

from sextant.base.errors import InputError
from sextant.base.files import docstrings_below, read_plain, write_text
from sextant.base.numbers import is_plain
from sextant.base.resources import checkout

MAX_CHARACTERS = 100
_MOST_ERRORS = 6  # of a sheet that are named at once
MAX_FILE_NAME_CHARACTERS = 120  # two names and an ending fit into the 255 bytes of a file's name

_UNSAFE = re.compile(rb"[^A-Za-z0-9._+-]|\A[.-]")
_PERIODIC = re.compile(r"(.+)\1{19}\Z")
_ENCODED = re.compile(r"(?:~[0-9A-F]{2})+")


def file_name(given_id: str) -> str:
    """Return an id's name in paths, shells and wildcards: the id itself if it is safe.

    Bytes other than letters, digits and `._+-`, and a leading `.` or `-`, become `~` and two
    hexadecimal digits: `org/name` is `org~2Fname`.
    """
    return _UNSAFE.sub(lambda match: b"~%02X" % match[0][0], given_id.encode()).decode()


def id_of_file_name(name: str) -> str:
    """Return the id of a file name; a name that `file_name` never makes is returned as it is."""
    try:
        given_id = _ENCODED.sub(
            lambda match: bytes.fromhex(match[0].replace("~", "")).decode(), name
        )
        return given_id if file_name(given_id) == name else name
    except UnicodeError:
        return name


def by_file_name(ids: Collection[str]) -> dict[str, str]:
    """Return ids by their file names."""
    return {file_name(given_id): given_id for given_id in ids}


def id_problem(given_id: str) -> str | None:
    """Return why a text cannot be an id, None if it can."""
    if given_id != given_id.strip():
        return "has white space at its ends"
    # Control characters, line separators, marks that reverse the text: a terminal or a page would
    # show something else.
    if hidden := [ord(character) for character in given_id if not character.isprintable()]:
        return f"has the character U+{hidden[0]:04X}, which is not visible"
    if not given_id or len(given_id) > MAX_CHARACTERS:
        return f"has {len(given_id)} characters, not 1 to {MAX_CHARACTERS}"
    if _PERIODIC.search(file_name(given_id)):
        return "ends in 20 equal pieces, which Snakemake takes for a rule that needs itself"
    n_characters = len(file_name(given_id))
    if n_characters > MAX_FILE_NAME_CHARACTERS:
        return (
            f"has a file name of {n_characters} characters, above {MAX_FILE_NAME_CHARACTERS} "
            "(a character other than A-Z, a-z, 0-9 and ._+- takes 3 to 12)"
        )
    return None


def selectable_problem(given_id: str) -> str | None:
    """Return why an id cannot be selected in lists such as `a,b` or `*`, None if it can."""
    if given_id == "*" or "," in given_id:
        return "cannot be selected in benchmarks.tsv, where * means all and , separates"
    return id_problem(given_id)


def comparable(given_id: str) -> str:
    """Return an id without differences of case and Unicode form, which readers cannot see."""
    return unicodedata.normalize("NFC", given_id).casefold()


# Strict: in YAML `4` is a number and `"4"` is a text. The other regex engine has no look-ahead.
_STRICT = pydantic.ConfigDict(
    extra="forbid", strict=True, allow_inf_nan=False, regex_engine="python-re", defer_build=True
)
_MAX_YAML_BYTES = 2**18
_MAX_YAML_DEPTH = 50
_MAX_SHEET_BYTES = 2**26
# As in the Snakefile: the last wins.
DEFAULT_FILES = ("config/demo.yaml", "config/config.yaml")


def _accepted(problem_of: Callable[[str], str | None]) -> pydantic.AfterValidator:
    def check(text: str) -> str:
        if problem := problem_of(text):
            raise ValueError(f"{text!r} {problem}")
        return text

    return pydantic.AfterValidator(check)


IS_ID = _accepted(id_problem)
IS_SELECTABLE = _accepted(selectable_problem)
Id = Annotated[str, IS_ID]
SelectableId = Annotated[str, IS_SELECTABLE]


class Row(dict[str, Any]):
    """The values of a sheet's row by column, with its line (the header is line 1) and file."""

    def __init__(self, values: Mapping[str, Any], line: int, file: str | Path | None = None):
        super().__init__(values)
        self.line = line
        self.file = file

    def error(self, problem: str, field: str | None, fix: str | None) -> InputError:
        """Return the error to raise about a value of this row."""
        return InputError(problem, file=self.file, row=self.line, field=field, fix=fix)


@cache
def model_of(kind: type) -> type[pydantic.BaseModel]:
    """Return the pydantic model of a dataclass.

    A field with a default may be left out; an unknown field is an error.
    """
    definitions: dict[str, Any] = {}
    for field in fields(kind):
        hint = hints_of(kind)[field.name]
        is_required = field.default is MISSING and field.default_factory is MISSING
        is_section = isinstance(hint, type) and is_dataclass(hint)
        model = model_of(hint) if is_section else hint
        definitions[field.name] = (model, ... if is_required else None)
    return pydantic.create_model(kind.__name__, __config__=_STRICT, **definitions)


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Return the type of each field that has a value: `X` of `X | None`."""
    return {
        name: get_args(hint)[0] if get_origin(hint) in (Union, UnionType) else hint
        for name, hint in get_type_hints(kind, include_extras=True).items()
    }


@cache
def field_docs(kind: type) -> dict[str, str]:
    """Return what the docstrings of the fields say, or the `description` of their types."""
    model_fields = model_of(kind).model_fields.items()
    return {name: str(field.description) for name, field in model_fields} | docstrings_below(kind)


def check_fields(
    kind: type, values: Mapping[str, Any], file: str | Path, row: int | None = None
) -> None:
    """Check a mapping by a dataclass's fields; InputError says what does not fit, and the fix."""
    try:
        model_of(kind).model_validate(dict(values))
    except pydantic.ValidationError as error:
        first = min(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
        raise _explained(kind, first, first["loc"]).at(file=file, row=row) from None


def _explained(kind: type, first: ErrorDetails, path: tuple[int | str, ...]) -> InputError:
    """Return pydantic's error about the field at `path` in our words, with the field's own fix."""
    fix = None
    value = first["input"]
    for part in path:
        docs = field_docs(kind)
        hint = hints_of(kind).get(str(part))
        fix = docs.get(str(part), fix)
        kind = hint if isinstance(hint, type) and is_dataclass(hint) else kind
    match first["type"]:
        case "extra_forbidden":
            problem = "unknown field"
            fix = f"remove it or correct its name; known here: {', '.join(docs)}"
        case "missing":
            problem = "it is missing"
        case "string_pattern_mismatch":
            problem = f"{value!r} is not of the form that this field takes"
        case "value_error":
            problem = str(first["ctx"]["error"])
        case _:  # "Input should be greater than 0"
            problem = re.sub(r"^\w+", lambda _: repr(value), first["msg"])
    return InputError(problem, field=".".join(map(str, path)), fix=fix)


def load_sheet(
    path: str | Path, kind: type, key: str | None = None, *, delimiter: str | None = "\t"
) -> list[Row]:
    """Read a sheet; each row is a dict without empty cells, checked by a dataclass.

    `#` begins a comment. With `delimiter` None, commas separate the columns of a sheet without
    tabs. Two values of the column `key` have to differ by more than case or Unicode form.
    InputError: a wrong column, wrong values or keys twice in some rows, no rows.
    """
    path = Path(path)
    types = field_types(kind)
    rows: list[Row] = []
    seen: dict[str, Row] = {}
    errors: list[InputError] = []
    for cells in sheet_cells(path, kind, delimiter=delimiter):
        values = {name: _typed(cell, types[name]) for name, cell in cells.items() if cell}
        row = Row(values, cells.line, path)
        try:
            check_fields(kind, row, path, row.line)
            if key:
                _check_key(row, kind, key, seen)
        except InputError as error:
            errors.append(error)
            if len(errors) == _MOST_ERRORS:
                break
        rows.append(row)
    if errors:
        raise _together(errors)
    if not rows:
        raise InputError("the sheet has no rows", file=path, fix="add one below the header")
    return rows


def _check_key(row: Row, kind: type, key: str, seen: dict[str, Row]) -> None:
    """Raise InputError if a row lacks its key, or an earlier one has it; note it in `seen`."""
    if key not in row:
        raise row.error("it is missing", key, field_docs(kind)[key])
    if (other := seen.setdefault(comparable(row[key]), row)) is not row:
        alike = "" if row[key] == other[key] else f" as {other[key]!r}, which looks alike"
        problem = f"{row[key]!r} is already in line {other.line}{alike}"
        raise row.error(problem, key, "rename one")


def _together(errors: Sequence[InputError]) -> InputError:
    """Return the first error of a sheet, with the others after its fix."""
    first, *others = errors
    if not others:
        return first
    also = "; ".join(f"line {it.row}, field '{it.field}': {it.problem}" for it in others)
    fix = f"{first.fix or 'correct it'}. Wrong, too: {also}"
    return InputError(first.problem, file=first.file, row=first.row, field=first.field, fix=fix)


def load_column(
    texts: Sequence[str], kind: type, field: str, path: Path, lines: Sequence[int]
) -> list[Any]:
    """Return a column's values; InputError names the first wrong one, by its line."""
    hint = hints_of(kind)[field]
    values = [_typed(text, field_types(kind)[field]) for text in texts]
    try:
        return pydantic.TypeAdapter(list[hint], config=_STRICT).validate_python(values)  # type: ignore[valid-type]
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        line = lines[int(first["loc"][0])]
        raise _explained(kind, first, (field,)).at(file=path, row=line) from None


@cache
def field_types(kind: type) -> dict[str, type]:
    """Return the plain type of each field: `int` of `Literal[1, 2] | None`."""
    types = {}
    for name, hint in hints_of(kind).items():
        plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        types[name] = type(get_args(plain)[0]) if get_origin(plain) is Literal else plain
    return types


def _typed(cell: str, expected: type) -> Any:
    """Return a cell's value; a text of another type stays a text, which the check refuses."""
    if expected is bool:
        return {"true": True, "false": False}.get(cell.lower(), cell)
    if expected in (int, float) and not is_plain(cell):
        return cell
    try:
        return expected(cell)
    except ValueError:
        return cell


def sheet_cells(path: str | Path, kind: type, *, delimiter: str | None = "\t") -> list[Row]:
    """Return a sheet's rows as texts; InputError for a column unknown, missing or twice."""
    path = Path(path)
    (first, *others) = _lines(path)
    if delimiter is None:
        delimiter = "\t" if any("\t" in line for _, line in (first, *others)) else ","
    mark = "tab" if delimiter == "\t" else "comma"
    separate = f"separate the columns with one {mark} each; spaces do not count"

    head = Row({}, first[0], path)
    columns = model_of(kind).model_fields
    header = [name.strip() for name in first[1].rstrip("\r\n").split(delimiter)]
    for name in header:
        if len(several := re.split(r"[\s,;]+", name)) > 1 and columns.keys() & set(several):
            raise head.error(f"{name!r} is one column, and holds several names", None, separate)
        if name not in columns:
            fix = f"remove it or correct its name; known: {', '.join(columns)}"
            raise head.error("unknown column", name, fix)
        if header.count(name) > 1:
            raise head.error("column twice", name, "remove one")
    for name, column in columns.items():
        if column.is_required() and name not in header:
            raise head.error("column missing", name, f"add it: {field_docs(kind)[name]}")

    rows = []
    for number, line in others:
        row = Row({}, number, path)
        try:
            cells = next(csv.reader([line.rstrip("\r\n")], delimiter=delimiter))
        except csv.Error as error:
            raise row.error(str(error), None, "shorten the row") from None
        if len(cells) != len(header):
            raise row.error(f"{len(cells)} cells under {len(header)} columns", None, separate)
        row.update(zip(header, map(str.strip, cells), strict=True))
        rows.append(row)
    return rows


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        content = read_plain(path, _MAX_SHEET_BYTES)
        text = content.decode("utf-8-sig")
    except OSError as error:
        fix = "create the sheet or correct its path in the configuration"
        raise InputError(f"cannot be read ({error.strerror})", file=path, fix=fix) from None
    except UnicodeDecodeError as error:
        row = Row({}, content.count(b"\n", 0, error.start) + 1, path)
        raise row.error(f"not UTF-8 ({error.reason})", None, "save it as UTF-8") from None
    if (at := text.find("\0")) >= 0:
        row = Row({}, text.count("\n", 0, at) + 1, path)
        raise row.error("a NUL byte", None, "save it as plain text")
    numbered = enumerate(io.StringIO(text), 1)
    lines = [(n, line) for n, line in numbered if line.strip() and not line.startswith("#")]
    if not lines:
        raise InputError("the sheet is empty", file=path, fix="add its header line")
    return lines


# The parser in C is ten times as fast; PyYAML may be built without it.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc]
    """Refuses a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if (other := seen.get(str(key.value))) is not None:
                problem = f"line {line}: the key {key.value!r} is already in line {other}"
                raise yaml.YAMLError(f"{problem}; keep one of them")
            seen[str(key.value)] = line
        return cast(dict[Any, Any], super().construct_mapping(node, deep))


def _refuse_aliases(text: str) -> None:
    """Refuse aliases, since ten lines may expand to gigabytes, and what is nested too deeply."""
    depth = 0
    for event in yaml.parse(text, Loader=_SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"line {line}: aliases such as *name are not allowed")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_YAML_DEPTH:
            raise yaml.YAMLError(f"line {line}: nested in more than {_MAX_YAML_DEPTH} levels")


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file of keys and values; InputError for aliases, or above 256 KiB."""
    try:
        text = read_plain(path, _MAX_YAML_BYTES).decode()
        _refuse_aliases(text)
        document = _Loader(text).get_single_data()
    except OSError as error:
        fix = "correct its path"
        raise InputError(f"cannot be read ({error.strerror})", file=path, fix=fix) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        lines = text.splitlines()[mark.line : mark.line + 1] if mark else []
        has_tab = any("\t" in line for line in lines)
        problem = f"not YAML ({' '.join((error.problem or error.context or '').split())})"
        fix = "indent with spaces, not tabs" if has_tab else "correct this line"
        row = mark.line + 1 if mark else None
        raise InputError(problem, file=path, row=row, fix=fix) from None
    # ValueError: no UTF-8, or a date or a number that Python does not have.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = f"not YAML ({' '.join(str(error).split())})"
        raise InputError(problem, file=path, fix="correct the file") from None
    if not isinstance(document, dict | None):
        raise InputError("no keys and values", file=path, fix="write key: value")
    return document or {}


class _Dumper(yaml.SafeDumper):
    """Writes a value that occurs twice twice: other readers refuse aliases, as ours does."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def lines(self, text: str) -> yaml.ScalarNode:
        """Return a text; one of several lines is written line by line."""
        style = "|" if "\n" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.lines)


def as_yaml(*documents: Mapping[str, Any]) -> str:
    """Return keys and values in the order given, one YAML document each."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Write keys and values in the order given; the file appears whole or not at all."""
    write_text(path, as_yaml(content))


def read_configuration(folder: Path, config_files: Sequence[Path] = ()) -> dict[str, Any]:
    """Read the Snakefile's configuration in a folder and merge others into it.

    InputError: there is none, or this is an installed wheel.
    """
    checkout()
    for file in DEFAULT_FILES:
        if not (folder / file).is_file():
            fix = "run this in the project's folder"
            raise InputError("there is no such file here", file=file, fix=fix)
    return merged(read_yaml(folder / file) for file in [*map(Path, DEFAULT_FILES), *config_files])


def merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge configurations key by key, also below keys; later ones win."""
    config: dict[str, Any] = {}
    for key, value in (item for part in parts for item in part.items()):
        before: Any = config.get(key)
        is_section = isinstance(value, Mapping) and isinstance(before, Mapping)
        config[key] = merged([before, value]) if is_section else value
    return config
