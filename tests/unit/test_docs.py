"""The pages keep up with the code."""

import re

import yaml

from sextant.base.sheets import SCHEMAS
from sextant.experiment.loading import SHEET_KEYS
from sextant.facts.llm import FAMILIES
from sextant.points.cells.metrics import (
    LATENCIES,
    REQUEST_RATE_FORMULA,
    START_FORMULA,
    THROUGHPUT_FORMULA,
)
from sextant.trace.trace_format import FORMATS
from support import ROOT


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_metric_stands_in_the_page_with_its_formula() -> None:
    text = page("docs/metrics.md")
    assert START_FORMULA in text
    for metric in LATENCIES:
        (line,) = [line for line in text.splitlines() if line.startswith(f"| `{metric.name}` |")]
        assert f"| {metric.meaning} | {metric.formula} |" in line
        for peer in (metric.vllm, metric.aiperf, metric.guidellm):
            assert peer == "none" or f"`{peer.split()[0]}`" in line
    assert THROUGHPUT_FORMULA in text
    assert REQUEST_RATE_FORMULA in text


def test_every_trace_format_is_described_with_its_columns() -> None:
    text = page("docs/adding.md")
    for name, form in FORMATS.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        for column in form.columns:
            assert column in line, f"{name}: {column}"


def test_every_family_of_llms_is_listed() -> None:
    text = page("docs/adding.md")
    for family in FAMILIES:
        assert f"`{family}`" in text


def test_every_module_of_the_library_has_its_place_in_the_architecture() -> None:
    text = page("docs/architecture.md")
    library = ROOT / "scripts" / "sextant"
    known = {"__init__", "errors", "files", "logs", "progress"}  # helpers of all
    for module in library.glob("*.py"):
        assert module.stem in known or f"`{module.stem}`" in text, module.name
    for package in (path for path in library.iterdir() if (path / "__init__.py").exists()):
        assert f"`{package.name}/`" in text, package.name


def test_every_rule_has_a_script_of_its_name_and_no_script_is_left_over() -> None:
    rules = set()
    for file in (ROOT / "workflow" / "rules").glob("*.smk"):
        rules |= set(re.findall(r"^rule (\w+):", file.read_text(), re.M))
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    assert rules == scripts


def test_every_key_of_the_configuration_is_explained() -> None:
    schema = yaml.safe_load((SCHEMAS / "config.schema.yaml").read_text())
    lines = page("config/config.yaml").splitlines()
    for name in [*schema["required"], *schema["properties"]["engine"]["required"]]:
        (number,) = [i for i, line in enumerate(lines) if line.strip().startswith(f"{name}:")]
        is_explained = lines[number - 1].strip().startswith("#")
        explained_by_its_keys = name == "engine"
        assert is_explained or explained_by_its_keys, name


def test_every_field_of_every_schema_has_a_description() -> None:
    def check(schema: dict, where: str) -> None:
        for name, part in schema.get("properties", {}).items():
            assert part.get("description"), f"{where}: {name}"
            check(part, where)

    assert {path.name.split(".")[0] for path in SCHEMAS.glob("*.yaml")} == {
        *SHEET_KEYS,
        "variants",
        "cells",
        "chosen_cells",
        "mapping",
        "manifest",
        "published_points",
        "characterization",
        "characterization_llms",
        "characterization_gpu_profiles",
        "characterization_feasibility",
        "points",
        "endpoints",
        "config",
        "gpu",
        "gpu_features",
        "llm_features",
        "prices",
        "provider_prices",
        "demands",
        "supply",
        "probe",
        "registry",
    }
    for path in SCHEMAS.glob("*.yaml"):
        check(yaml.safe_load(path.read_text()), path.name)
