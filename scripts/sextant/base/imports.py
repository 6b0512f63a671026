"""Which files of the library a rule's script depends on, computed from its imports."""

import ast
from functools import cache
from pathlib import Path

import grimp

_PACKAGE = "sextant"
_TEMPLATES = (".j2", ".css")


def library_files(script: Path, *modules: str) -> list[str]:
    """Return the library files that decide a script's results, sorted.

    They are the modules that the script, which lies beside the library, imports, also through
    others and inside functions; `modules`, which it imports by name at run time; and templates
    beside these.
    """
    graph = _imports()
    direct = _named_in(script, graph.modules) | set(modules)
    found = direct.union(*map(graph.find_upstream_modules, direct))
    files = {_file(module, script.parent) for module in found}
    templates = {file for folder in {file.parent for file in files} for file in folder.iterdir()}
    return sorted(map(str, files | {file for file in templates if file.suffix in _TEMPLATES}))


@cache
def _imports() -> grimp.ImportGraph:
    return grimp.build_graph(_PACKAGE, cache_dir=None)


def _named_in(script: Path, known: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & known


def _file(module: str, folder: Path) -> Path:
    path = folder.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
