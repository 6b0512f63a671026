"""How the library reads: figures of docs/architecture.md, "Weight".

    python benchmarks/reading.py [--list] [--quick] [ROOM ...]

Counted are all rooms, or those that are named. README's question is asked as well (not with
--quick), in a process whose calls are counted: functions and files of ours that it visits, and
modules that it loads. `--list` names what is too long or too wide.
"""

import ast
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
ANSWERING = {"answer", "ask", "recommend", "capacity", "fleet", "plan"}
VAGUE = {"each", "own", "known", "found", "place", "given", "made", "asked"}
README_QUESTION = (
    "recommend --hf-config resources/llms/meta-llama__Llama-3.1-8B-Instruct.json --request-rate 8 "
    "--input-tokens 1500 --output-tokens 250 --ttft-ms p95:1000 --tpot-ms 40"
)
MOST_LINES = 60
MOST_PARAMETERS = 7
MOST_MODULE_LINES = 400
MOST_FIELDS = 15
_WATCHED = """
import sys, threading
calls = set()
def watch(frame, event, _):
    code = frame.f_code
    if event == "call" and "/sextant/" in code.co_filename and code.co_name[0] != "<":
        calls.add((code.co_filename, code.co_qualname))
from sextant.cli.app import app
sys.setprofile(watch); threading.setprofile(watch)
try:
    app(sys.argv[1:], standalone_mode=False)
finally:
    sys.setprofile(None)
    modules = [name for name in sys.modules if name.startswith("sextant.")]
    files = {file for file, _ in calls}
    print(len(calls), len(files), len(modules), file=sys.stderr)
"""


class Offender(NamedTuple):
    """A function, type or module that is too long or too wide."""

    file: str
    name: str  # empty for a module
    line: int
    count: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name} {self.count}"


@dataclass
class Figures:
    """What is counted over all modules."""

    long_functions: list[Offender] = field(default_factory=list)
    wide_functions: list[Offender] = field(default_factory=list)
    long_modules: list[Offender] = field(default_factory=list)
    wide_types: list[Offender] = field(default_factory=list)
    subscripts: int = 0
    dict_functions: int = 0
    vague_names: int = 0
    packed: int = 0
    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    functions: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    helpers_of_one: int = 0


def code_lines(tree: ast.Module, source: str) -> set[int]:
    """Return the numbers of lines that are neither blank nor part of a docstring."""
    lines = {n for n, text in enumerate(source.splitlines(), 1) if text.strip()}
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Expr(ast.Constant(str())):
                    lines -= set(range(child.lineno, (child.end_lineno or child.lineno) + 1))
    return lines


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many parameters a function has, without `self` and `cls`."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return sum(name not in ("self", "cls") for name in names)


def names_bound(tree: ast.Module) -> Iterator[str]:
    """Return each name that is read or written, parameters and attributes of ours included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def count_node(node: ast.AST, name: str, lines: set[int], figures: Figures) -> None:
    """Add what one node of a module counts."""
    is_answering = Path(name).parts[0] in ANSWERING
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            n = len(lines & set(range(node.lineno, (node.end_lineno or 0) + 1)))
            if n > MOST_LINES:
                figures.long_functions.append(Offender(name, node.name, node.lineno, n))
            n = parameters(node)
            if n > MOST_PARAMETERS:
                figures.wide_functions.append(Offender(name, node.name, node.lineno, n))
            returned = ast.unparse(node.returns) if node.returns else ""
            is_dict = re.match(r"(dict\[str, Any\]|Row\b|list\[Row\]|list\[dict)", returned)
            figures.dict_functions += bool(is_answering and is_dict)
        case ast.ClassDef():
            n = sum(isinstance(child, ast.AnnAssign) for child in node.body)
            if n > MOST_FIELDS:
                figures.wide_types.append(Offender(name, node.name, node.lineno, n))
        case ast.Subscript(slice=ast.Constant(value=str())):
            figures.subscripts += is_answering
        case ast.Assign(targets=[ast.Tuple()], value=ast.Tuple(elts=[_, _, *_])):
            figures.packed += 1


def measure(folder: Path, rooms: set[str]) -> Figures:
    """Count everything in the modules of these rooms of the library; of all without any."""
    figures = Figures()
    for path in sorted(folder.rglob("*.py")):
        if rooms and path.relative_to(folder).parts[0] not in rooms:
            continue
        source = path.read_text()
        tree = ast.parse(source)
        name = str(path.relative_to(folder))
        lines = code_lines(tree, source)
        if len(lines) > MOST_MODULE_LINES:
            figures.long_modules.append(Offender(name, "", 1, len(lines)))
        bound = Counter(names_bound(tree))
        figures.vague_names += sum(bound[vague] for vague in VAGUE)
        for node in ast.walk(tree):
            count_node(node, name, lines, figures)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                figures.classes[node.name].append(name)
            elif isinstance(node, ast.FunctionDef) and node.name.startswith("_"):
                figures.helpers_of_one += bound[node.name] == 1
            elif isinstance(node, ast.FunctionDef):
                figures.functions[node.name].append(name)
    return figures


def ask_readme(library: Path) -> list[int]:
    """Return the functions and files of ours that README's question visits, and modules loaded."""
    done = subprocess.run(
        [sys.executable, "-c", _WATCHED, *README_QUESTION.split()],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(library.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(word) for word in done.stderr.splitlines()[-1].split()]


def main() -> None:
    """Print the table."""
    library = ROOT / "scripts" / "sextant"
    rooms = {word for word in sys.argv[1:] if not word.startswith("--")}
    figures = measure(library, rooms)
    twice = {
        kind: sum(len(files) > 1 for files in names.values())
        for kind, names in (("classes", figures.classes), ("functions", figures.functions))
    }
    rows = [
        ("functions above 60 lines", len(figures.long_functions)),
        ("functions with more than 7 parameters", len(figures.wide_functions)),
        ("modules above 400 lines", len(figures.long_modules)),
        ("types with more than 15 fields", len(figures.wide_types)),
        ("string-key subscripts in the answering rooms", figures.subscripts),
        ("functions there that return dictionaries or rows", figures.dict_functions),
        ("class names with two meanings", twice["classes"]),
        ("public function names with two meanings", twice["functions"]),
        ("each, own, known, found, place, given, made, asked as names", figures.vague_names),
        ("packed assignments", figures.packed),
        ("private helpers with one caller", figures.helpers_of_one),
    ]
    if not rooms and "--quick" not in sys.argv:
        visited = ask_readme(library)
        rows += zip(
            ("functions that README's question visits", "their files", "modules loaded"),
            visited,
            strict=True,
        )
    for name, value in rows:
        print(f"{value:6,}  {name}")
    if "--list" in sys.argv:
        for kind in ("long_functions", "wide_functions", "long_modules", "wide_types"):
            print(f"\n{kind}:", *getattr(figures, kind), sep="\n  ")


if __name__ == "__main__":
    main()
