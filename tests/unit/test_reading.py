"""How long functions, modules and types may be: docstrings and blank lines are not counted."""

from collections.abc import Iterable

from support import ROOT, script

reading = script("benchmarks/reading.py")
FIGURES = reading.measure(ROOT / "scripts" / "sextant", set())

# Each list is exact: what has become shorter leaves it, and nothing is added.
LONG_FUNCTIONS = {
    "capacity/capacity.py answer_capacity",
    "capacity/capacity.py find_schedule",
    "capacity/simulation.py simulate_llm",
    "cli/capacity.py print_capacity",
    "cli/workload.py sample",
    "decide/simulated_sizing.py size_by_simulation",
    "decide/simulated_sizing.py size_profiles",
    "load/run.py load_server",
    "recommend/recommend.py _answer_from_draws",
    "recommend/recommend.py _answer_from_points",
    "recommend/what_if.py what_if",
    "report/trace_characterize.py write_trace_report",
}
WIDE_FUNCTIONS = {
    "ask/api_prices.py compare_with_api",
    "bench/burst.py run_phases",
    "capacity/simulation.py simulate_llm",
    "cli/capacity.py print_capacity",
    "decide/simulated_sizing.py size_by_simulation",
    "decide/simulated_sizing.py size_profiles",
    "judge/accuracy.py predict_held_out",
    "load/run.py load_server",
    "load/run.py measure_level",
    "load/schedules.py run_open_loop",
    "simulate/scaling.py simulate_scaled",
}
LONG_MODULES = {
    "answer/answer.py",
    "ask/forecast.py",
    "ask/source.py",
    "capacity/document.py",
    "decide/simulated_sizing.py",
    "recommend/recommend.py",
    "report/trace_characterize.py",
    "report/trace_traffic.py",
    "simulate/steps.py",
    "simulate/tables.py",
}
WIDE_TYPES = {
    "ask/question.py Question": "to be split",
    "bench/measurement.py Cell": "to be split",
    "cli/options.py AskedOptions": "to be split",
    "facts/llm.py LLM": "columns of table llm, keys of run.json; used together",
    "experiment/sheets.py GpuFeatureRow": "the published sheet has 23 columns",
    "load/client.py Exchange": "to be split",
    "simulate/simulation.py Simulation": "to be split",
    "simulate/tables.py World": "to be split",
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
