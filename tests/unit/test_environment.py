"""The pins agree wherever they are written."""

import re
import tomllib

import yaml

import sextant
from support import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
LOCKS = {"dev": ROOT / "requirements.lock", "baselines": ROOT / "requirements-baselines.lock"}


def pins(*extras: str) -> set[str]:
    optional = PROJECT["optional-dependencies"]
    return {*PROJECT["dependencies"], *(pin for name in extras for pin in optional[name])}


def locked(extra: str) -> set[str]:
    return set(re.findall(r"^\S+==\S+$", LOCKS[extra].read_text(), re.M))


def test_environment_yml_has_the_pins_of_pyproject() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = (part["pip"] for part in environment["dependencies"] if isinstance(part, dict))
    assert set(pip) == pins(*LOCKS) == pins(*PROJECT["optional-dependencies"])
    assert sextant.__version__ == PROJECT["version"]


def test_the_locks_have_every_pin_and_agree() -> None:
    for extra in LOCKS:
        assert pins(extra) <= locked(extra)
    versions = {}
    for pin in locked("dev") | locked("baselines"):
        name, version = pin.split("==")
        assert versions.setdefault(name, version) == version, name
    for name in ("jax", "jaxlib", "keras", "scikit-surprise"):  # what only baselines need
        assert not any(pin.startswith(f"{name}==") for pin in locked("dev"))
    for lock in (*LOCKS.values(), ROOT / "workflow" / "envs" / "vllm-cpu.lock"):
        assert not re.search(r"--|://|file:", lock.read_text()), f"{lock} names a place"
