"""No shell gets a string, nothing is unpickled or evaluated: read from the code itself."""

import ast
import re
from collections.abc import Iterator

import pytest

from support import ROOT

PROGRAMS = [ROOT / "tests" / "slurm" / "cluster", ROOT / "tests" / "fake_engine" / "python"]
CODE = [*(ROOT / "scripts").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *PROGRAMS]
RULES = [ROOT / "workflow" / "Snakefile", *sorted((ROOT / "workflow").rglob("*.smk"))]

# What unpickles runs whatever the pickle says; joblib's own processes exchange pickles that
# this program made (`Parallel`), which is something else.
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "torch"}
NAMES = {"eval", "exec", "compile", "__import__", "breakpoint"}
CALLS = {
    *("os.system", "os.popen", "os.execl", "os.spawnl", "pty.spawn", "commands.getoutput"),
    *("subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell"),
    *("joblib.load", "joblib.dump", "np.load", "numpy.load", "pd.read_pickle", "pd.eval"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "tempfile.mktemp"),
    "ssl._create_unverified_context",
}
METHODS = {"to_pickle", "read_pickle", "run_shell", "eval"}
STARTERS = {"Popen", "run", "call", "check_call", "check_output"}


def name_of(node: ast.AST) -> str:
    """Return `a.b` of what is called, as far as it is names."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def faults(source: str) -> Iterator[str]:
    """Yield what a piece of code does that nothing here may do."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names]
            yield from (f"import of {each}" for each in names if each.split(".")[0] in MODULES)
        elif isinstance(node, ast.Call):
            yield from call_faults(node)


def call_faults(node: ast.Call) -> Iterator[str]:
    called = name_of(node.func)
    keywords = {each.arg: each.value for each in node.keywords}
    is_plain = called == "np.load" and getattr(keywords.get("allow_pickle"), "value", True) is False
    if (called in NAMES | CALLS and not is_plain) or called.rpartition(".")[2] in METHODS:
        yield f"call of {called}"
    shell = keywords.get("shell")
    if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
        yield "a shell"
    is_start = called.startswith("subprocess.") and called.rpartition(".")[2] in STARTERS
    # A list, or a name of one; never a command line as text.
    if is_start and node.args and isinstance(node.args[0], ast.Constant | ast.JoinedStr):
        yield "a command line as text"
    if called.endswith(".extractall") and getattr(keywords.get("filter"), "value", "") != "data":
        yield "an archive unpacked without a filter"
    is_page = called.endswith("Environment") and "loader" in keywords
    if is_page and getattr(keywords.get("autoescape"), "value", False) is not True:
        yield "a page without escapes"


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import pickle", "import of pickle"),
        ("from torch.serialization import load", "import of torch.serialization"),
        ("import subprocess\nsubprocess.run(['ls'], shell=True)", "a shell"),
        ("import subprocess\nsubprocess.run(f'ls {x}')", "a command line as text"),
        ("os.system('ls')", "call of os.system"),
        ("yaml.load(text, Loader)", "call of yaml.load"),
        ("np.load(path, allow_pickle=True)", "call of np.load"),
        ("eval(text)", "call of eval"),
        ("tar.extractall(folder)", "an archive unpacked without a filter"),
        ("Environment(loader=x)", "a page without escapes"),
    ],
)
def test_the_search_finds_what_it_looks_for(source: str, fault: str) -> None:
    assert list(faults(source)) == [fault]


def test_the_search_leaves_alone_what_is_safe() -> None:
    assert not list(faults("import re\nre.compile('x')\nsubprocess.run([a, b], shell=False)"))
    assert not list(faults("yaml.safe_load(t)\ntar.extractall(f, filter='data')"))
    assert not list(faults("np.load(path, allow_pickle=False)"))


def test_no_shell_no_pickle_no_evaluation() -> None:
    found = {path: list(faults(path.read_text())) for path in CODE}
    assert len(found) > 200
    assert not {str(path): what for path, what in found.items() if what}


def test_rules_run_scripts_and_no_shell() -> None:
    for path in RULES:
        given = r"^\s*(shell|run|wrapper|notebook|onstart|onsuccess|onerror):"
        assert not re.findall(given, path.read_text(), re.M), path


OWN_SCRIPTS = (
    "<script>{{ script | drawn }}</script>",
    '<script type="application/json">{{ as_script_data(what_if) | drawn }}</script>',
)


def test_only_figures_of_our_own_stand_in_pages_as_they_are() -> None:
    """`drawn` takes text as HTML: it is for SVG, whose text matplotlib has escaped, for the style
    sheet, and for the what-if, a template of ours with one script and its data.
    """
    for template in (ROOT / "scripts").rglob("*.j2"):
        text = re.sub("|".join(map(re.escape, OWN_SCRIPTS)), "", template.read_text())
        assert not re.search(r"\|\s*safe\b|autoescape|<script", text), template
        # Escapes protect an attribute's value within quotes only.
        assert not re.search(r"<[^>]*\s[\w-]+=\{\{", text), template
        for found in re.findall(r"\{\{([^}]*)\|\s*drawn\s*\}\}", text):
            assert re.search(r"chart\.svg|block\.html|style|what_if|data", found), (template, found)
    for path in (ROOT / "scripts").rglob("*.py"):
        if "Markup(" in path.read_text() or "import Markup" in path.read_text():
            assert path.parts[-2:] == ("pages", "page.py")


@pytest.mark.parametrize(
    ("library", "places"), [("yaml", {"base/sheets.py"}), ("typer.echo", {"cli/printing.py"})]
)
def test_what_strangers_wrote_is_read_and_printed_in_one_place(
    library: str, places: set[str]
) -> None:
    root = ROOT / "scripts" / "sextant"
    used = re.compile(rf"\b{re.escape(library)}(\.|\()(?!yaml)|import {re.escape(library)}$", re.M)
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if used.search(re.sub(r"\w+\.yaml", "", path.read_text(encoding="utf-8")))
    }
    assert found == places
