"""The wheel answers outside the clone as the checkout does, without Snakemake."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support import ROOT

pytestmark = pytest.mark.slow  # it installs all dependencies again, a minute or two

LLM = "meta-llama__Llama-3.1-8B-Instruct"
QUESTION = [
    *("recommend", "--hf-config", f"{LLM}.json", "--request-rate", "8"),
    *("--input-tokens", "1500", "--output-tokens", "250"),
    *("--ttft-ms", "p95:1000", "--tpot-ms", "40", "--format", "json"),
]


def run(*command: object, folder: Path) -> str:
    """Run a program in a folder, without anything of ours on its path; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the programs of an environment that has the wheel alone."""
    folder = tmp_path_factory.mktemp("environment")
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    run(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT, folder=folder)
    (wheel,) = folder.glob("sextant_llm-*.whl")
    assert wheel.stat().st_size < 3_000_000
    shipped = set(zipfile.ZipFile(wheel).namelist())
    library = [path for path in (ROOT / "scripts" / "sextant").rglob("*") if path.is_file()]
    names = {path.relative_to(ROOT / "scripts").as_posix() for path in library}
    # Templates and SQL too; compiled modules of other Pythons may lie in the checkout.
    assert {name for name in names if not name.endswith((".pyc", ".so"))} <= shipped
    assert sum(name.startswith("sextant/simulate/built_") for name in shipped) == 1

    run(sys.executable, "-m", "venv", folder / "venv", folder=folder)
    lock = ROOT / "requirements.lock"
    python = folder / "venv" / "bin" / "python"
    run(python, *pip, "install", "--constraint", lock, wheel, folder=folder)
    return python.parent


def test_it_answers_readmes_question_as_the_checkout_does(binaries: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "resources" / "llms" / f"{LLM}.json", tmp_path)

    checkout = run(Path(sys.executable).parent / "sextant", *QUESTION, folder=tmp_path)

    assert run(binaries / "sextant", *QUESTION, folder=tmp_path) == checkout


def test_it_has_all_sources_and_no_snakemake(binaries: Path, tmp_path: Path) -> None:
    shown = run(binaries / "sextant", "characterizations", folder=tmp_path)
    for folder in (ROOT / "resources" / "characterizations").iterdir():
        assert f"archive:{folder.name}" in shown

    look = "import importlib.util, sextant; print(importlib.util.find_spec('snakemake'))"
    assert run(binaries / "python", "-c", look, folder=tmp_path) == "None\n"


def test_what_needs_the_pipeline_says_so(binaries: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "config", tmp_path / "config")

    done = subprocess.run(
        [binaries / "sextant", "plan"], cwd=tmp_path, capture_output=True, text=True
    )

    assert done.returncode == 2
    assert "clone the repository" in done.stderr
