"""How long functions, modules and types may be: docstrings and blank lines are not counted."""

from collections.abc import Iterable

from support import ROOT, script

reading = script("benchmarks/reading.py")
FIGURES = reading.measure(ROOT / "scripts" / "sextant", set())

# Each list is exact: what has become shorter leaves it, and nothing is added.
LONG_FUNCTIONS: set[str] = set()
WIDE_FUNCTIONS: set[str] = set()
LONG_MODULES: set[str] = set()
WIDE_TYPES = {
    "ask/question.py Question": "what a caller may say; the keys of `asked` in the JSON",
    "experiment/sheets.py GpuFeatureRow": "the published sheet has 23 columns",
    "facts/llm.py LLM": "columns of table llm, keys of run.json; used together",
    "simulate/world.py World": "what the compiled loop holds; Numba passes one type",
}
"""Each with its reason."""


def names(offenders: Iterable) -> set[str]:
    return {f"{one.file} {one.name}".strip() for one in offenders}


def test_functions_have_at_most_60_lines() -> None:
    assert names(FIGURES.long_functions) == LONG_FUNCTIONS


def test_functions_have_at_most_7_parameters() -> None:
    assert names(FIGURES.wide_functions) == WIDE_FUNCTIONS


def test_modules_have_at_most_400_lines() -> None:
    assert names(FIGURES.long_modules) == LONG_MODULES


def test_types_have_at_most_15_fields() -> None:
    assert names(FIGURES.wide_types) == WIDE_TYPES.keys()
