"""The pages keep up with the code."""

import re
import runpy
import shlex
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pyarrow as pa
import pytest
import typer
import yaml

from sextant.base.sheets import field_types, model_of
from sextant.cli.app import app
from sextant.experiment.scenarios import KINDS
from sextant.experiment.sheets import Configuration, EngineSection
from sextant.facts.gpu import GPU, ProviderPriceRow, load_gpu
from sextant.facts.llm import PRECISIONS
from sextant.facts.llm_families import families
from sextant.facts.slo import METRICS, SLO
from sextant.points.cell_files import TABLES
from sextant.points.folder_sheets import PointRow
from sextant.points.load_tools import TOOLS
from sextant.points.metrics import LATENCIES
from sextant.points.tool_run import DOUBTS
from sextant.predict.predictor import PointPredictor
from sextant.trace.trace_format import published_formats
from support import ROOT

MOST_WORDS = 40  # of a sentence of the documents
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
PAGES = [
    *("README.md", "CONTRIBUTING.md", "resources/README.md", "resources/llms/README.md"),
    *DOCUMENTS,
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "benchmarks").glob("*.md")),
]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_documents_stay_short() -> None:
    assert len(page("docs/results.md").split()) <= 2450
    assert len(page("README.md").splitlines()) <= 112
    assert len(DOCUMENTS) <= 23


def _sentences(text: str) -> list[str]:
    """Return the sentences of a page's prose, lists and tables; inline code counts as one word."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    parts: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        if block.lstrip().startswith("|"):
            parts += block.split("|")
        elif not re.match(r" {4}|#|!\[", block):  # code, a heading, a picture
            parts += re.split(r"\n(?= *(?:[-*]|\d+\.) )", block)
    sentences = []
    for part in parts:
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", part)  # a link is its words
        words = " ".join(re.sub(r"`[^`]*`", "Code", words).split())
        sentences += re.split(r"(?<=[.!?:])\s+(?=[A-Z*(0-9])", words)
    return [each for each in sentences if _n_words(each) >= 4]


def _n_words(sentence: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", *DOCUMENTS])
def test_sentences_are_short(name: str) -> None:
    sentences = sorted(_sentences(page(name)), key=_n_words)
    mean = sum(map(_n_words, sentences)) / len(sentences)
    assert mean <= 25, f"{mean:.1f} words in the mean"
    assert _n_words(sentences[-1]) <= MOST_WORDS, sentences[-1]


def _anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    without_code = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", without_code, re.M)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_every_link_leads_to_a_file_and_a_heading_of_ours(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page(name)):
        if re.match(r"https?:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / name).parent / file if file else ROOT / name
        assert path.exists(), target
        assert not anchor or anchor in _anchors(path.read_text(encoding="utf-8")), target


def test_every_page_that_the_code_names_exists() -> None:
    for folder, pattern in (("scripts", "*.py"), ("workflow", "*.*"), ("config", "*.yaml")):
        for path in (ROOT / folder).rglob(pattern):
            if path.is_file() and path.suffix != ".pyc":
                for named in re.findall(r"docs/\w+\.md", path.read_text(encoding="utf-8")):
                    assert (ROOT / named).exists(), f"{path}: {named}"


def _commands_shown(text: str) -> list[list[str]]:
    """Return the words of every `sextant …` in a page's blocks and inline code."""
    blocks = re.findall(r"^ *```[^\n]*\n(.*?)^ *```", text, re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    outside = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    spans = re.findall(r"`(sextant [^`]+)`", outside)
    commands = []
    for line in [*lines, *(" ".join(span.split()) for span in spans)]:
        match = re.search(r"(?:^|[$;&|(] *|\.venv/bin/)sextant ([^|;&]*)", line)
        if match:
            lexer = shlex.shlex(match[1], posix=True, punctuation_chars=False)
            lexer.whitespace_split, lexer.commenters = True, "#"
            commands.append(list(lexer))
    return commands


@pytest.mark.parametrize("name", PAGES)
def test_every_command_and_option_that_a_page_shows_exists(name: str) -> None:
    group = typer.main.get_command(app)
    context = typer.Context(group)
    commands = group.list_commands(context)  # type: ignore[attr-defined]
    for command, *words in _commands_shown(page(name)):
        if command.startswith("-") or command in ("COMMAND", "…"):
            continue
        assert command in commands, f"{name}: sextant {command}"
        parameters = group.get_command(context, command).params  # type: ignore[attr-defined]
        options = {each for one in parameters for each in (*one.opts, *one.secondary_opts)}
        words = words[: words.index("--")] if "--" in words else words
        shown = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert shown <= options | {"--help", "-h"}, f"{name}: sextant {command}"


def test_every_metric_stands_in_the_page_with_its_formula() -> None:
    lines = page("docs/benchmarking.md").splitlines()
    for metric in LATENCIES:
        assert sum(line.startswith(f"| `{metric.name}` |") for line in lines) == 1


def _glossary() -> tuple[set[str], set[str]]:
    """Return the words, and the endings of names that have a unit, of the glossary's tables."""
    words, _, units = page("docs/glossary.md").partition("## Units")
    rows = [re.findall(r"^\| (.+?) \|", part, re.M) for part in (words, units)]
    first, endings = ({each for row in part for each in row.split(", ")} for part in rows)
    return first, {ending.strip("`") for ending in endings if ending.startswith("`_")}


def test_the_glossary_has_every_metric_load_and_precision() -> None:
    words, _ = _glossary()
    scenarios = {kind.replace("_", " ") for kind in KINDS}
    assert {*METRICS.values(), *scenarios} <= words
    text = page("docs/glossary.md")
    for precision in PRECISIONS:
        assert precision in text


def test_the_glossary_has_the_unit_of_every_column() -> None:
    _, endings = _glossary()
    plain = {"users", "goodput", "max_failed", "percentile", "level", "replica", "user"}
    plain |= {"tensor_parallel", "data_parallel", "expert_parallel", "utilization", "max_num_seqs"}
    names = {
        name
        for kind in (GPU, SLO, PointRow, ProviderPriceRow)
        for name, of in field_types(kind).items()
        if of in (int, float)
    }
    names |= {
        column.name
        for schema in TABLES.values()
        for column in schema
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    }
    for name in names - plain:
        assert name.startswith("n_") or f"_{name}".endswith(tuple(endings)), name


@pytest.mark.parametrize("name", ["README.md", "docs/cli.md", "docs/architecture.md"])
def test_the_glossary_is_linked(name: str) -> None:
    assert "glossary.md)" in page(name)


def test_every_trace_format_is_described_with_what_it_gives_and_every_family_listed() -> None:
    text = page("docs/adding.md")
    section = text[text.index("## A trace") : text.index("## An LLM")]
    gives = {"arrivals": {"arrival_s"}, "lengths": {"input_tokens", "output_tokens"}}
    gives |= {"status": {"status"}, "cache": {"hash_ids"}, "sessions": {"session_id"}}
    gives |= {"latency": {"e2e_ms", "end_s"}}
    (head,) = [line for line in section.splitlines() if line.startswith("| format |")]
    assert [cell.strip() for cell in head.split("|")[3:-1]] == [*gives]
    for name, form in published_formats().items():
        (line,) = [line for line in section.splitlines() if line.startswith(f"| `{name}` |")]
        columns = {*form.columns, *(["hash_ids"] if form.parts else [])}
        if form.is_log:  # a column of errors says it
            columns.add("status")
        says = ["yes" if columns & targets else "–" for targets in gives.values()]
        assert [cell.strip() for cell in line.split("|")[3:-1]] == says, name
    for column in published_formats()["sextant"].columns:
        assert column in text
    for family in families():
        assert f"`{family}`" in text


def test_the_architecture_names_every_room_and_no_other() -> None:
    text = page("docs/architecture.md")
    rooms = text[text.index("## Rooms") : text.index("## What makes")]
    packages = {path.parent.name for path in (ROOT / "scripts" / "sextant").glob("*/__init__.py")}
    named = re.findall(r"^\| `(\w+)/` \|", rooms, re.M)
    assert set(named) == packages and len(named) == len(packages)
    assert f"has {len(packages)} rooms" in rooms
    library = page("docs/architecture.svg").partition("The library:")[2]
    assert set(re.findall(r">([a-z]+)</text>", library)) == packages


@pytest.mark.parametrize("name", PAGES)
def test_every_test_that_a_page_names_exists(name: str) -> None:
    tests = {"test_mean_of_llms.py"}  # CONTRIBUTING.md has its reader write it
    for path in (ROOT / "tests").rglob("*.py"):
        tests |= {path.name, *re.findall(r"^def (test_\w+)", path.read_text(), re.M)}
    assert set(re.findall(r"\btest_\w+\.py|(?<=`)test_\w+(?=`)", page(name))) <= tests


def test_every_rule_has_a_script_of_its_name_and_no_script_is_left_over() -> None:
    rules = set()
    for file in (ROOT / "workflow" / "rules").glob("*.smk"):
        rules |= set(re.findall(r"^rule (\w+):", file.read_text(), re.M))
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    assert rules == scripts | {"import_archive"}  # which lies beside the archive's sheets


def test_every_key_of_the_configuration_is_explained() -> None:
    lines = (page("config/config.yaml") + page("config/demo.yaml")).splitlines()
    needed = [
        name
        for kind in (Configuration, EngineSection)
        for name, field in model_of(kind).model_fields.items()
        if field.is_required()
    ]
    for name in needed:
        (number,) = [i for i, line in enumerate(lines) if line.strip().startswith(f"{name}:")]
        assert lines[number - 1].strip().startswith("#") or name == "engine", name


def test_the_schemas_for_editors_are_in_step_and_describe_every_field() -> None:
    def check(schema: dict, where: str) -> None:
        for name, part in schema.get("properties", {}).items():
            assert part.get("description"), f"{where}: {name}"
            check(part, where)

    schemas = ROOT / "workflow" / "schemas"
    texts = runpy.run_path(str(schemas / "generate.py"))["texts"]()
    assert set(texts) == {*schemas.glob("*.yaml")}
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: make schemas"
        check(yaml.safe_load(text), path.name)


def test_the_first_changes_of_contributing_work(tmp_path, monkeypatch) -> None:
    text = page("CONTRIBUTING.md")
    (facts,) = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "L40-48GB.yaml").write_text(facts)
    gpu = load_gpu(tmp_path, "L40-48GB")
    (rates,) = re.findall(r'"L40-48GB", \((.*?)\)', text)
    names = ("bf16", "fp8", "int8", "nvfp4", "mxfp4", "int4")
    assert [gpu.dense_tflops(name) for name in names] == [float(n) for n in rates.split(",")]

    test, predictor = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "mean_of_llms.py").write_text(predictor)
    spec = spec_from_file_location("sextant.predict.mean_of_llms", tmp_path / "mean_of_llms.py")
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec.loader.exec_module(module)
    (tmp_path / "test_mean_of_llms.py").write_text(test)
    tests = runpy.run_path(str(tmp_path / "test_mean_of_llms.py"))
    tests["test_it_predicts_the_mean_of_the_other_llms"]()
    assert isinstance(module.MeanOfLLMs(None, {}, 0), PointPredictor)


def test_every_load_tool_and_doubt_stands_in_the_page() -> None:
    text = page("docs/adding.md")
    for name in TOOLS:
        assert re.search(rf"^\| `{name}` \|", text, re.M), name
    for kind in DOUBTS:
        assert f"`{kind}`" in text, kind
