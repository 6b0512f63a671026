"""Names and texts of strangers do not control the terminal; optimised Python is refused."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sextant.base.errors import InputError, printable
from sextant.base.job_log import job_log
from support import ROOT

ESCAPES = "\x1b[2J\x1b]0;title\x07\u202e\r\x9b"


def is_plain(text: str) -> bool:
    return all(character.isprintable() or character in "\n\t" for character in text)


def test_what_is_not_visible_is_escaped_and_the_rest_stays() -> None:
    assert printable("Größe 模型 ½\t") == r"Größe 模型 ½\t"
    assert printable("a\x1b[2J\nb\u202e") == r"a\x1b[2J\nb\u202e"
    assert printable("a\tb\nc\r", keep="\n\t") == "a\tb\nc\\r"
    # A folder's name that is not UTF-8, as Python reads it.
    assert printable(os.fsdecode(b"\xff")) == r"\udcff"


def test_an_error_is_plain_and_a_files_name_stays_in_its_line() -> None:
    error = InputError(f"has {ESCAPES}\nand more", file=f"odd\n{ESCAPES}", fix=ESCAPES)
    assert is_plain(str(error)) and str(error).startswith(r"odd\n\x1b[2J")


def test_a_log_is_plain(tmp_path: Path, capsys) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        with job_log(tmp_path / "job.log") as log:
            log.info("the server said %s", ESCAPES)
    finally:
        logging.basicConfig(handlers=before, level=level, force=True)
    assert is_plain((tmp_path / "job.log").read_text()) and is_plain(capsys.readouterr().err)
    assert r"said \x1b[2J" in (tmp_path / "job.log").read_text()


@pytest.mark.parametrize(
    "command",
    [
        ("-c", "from sextant.cli.app import main; main()", "--version"),
        ("-m", "snakemake", "--dry-run", "--nolock", "--cores", "1"),
    ],
)
def test_python_without_docstrings_is_refused_at_the_start(command) -> None:
    environment, how = os.environ | {"PYTHONOPTIMIZE": "2"}, {"capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, **how)
    assert done.returncode and "Traceback" not in done.stderr
    assert "Error: Python runs with -OO" in done.stderr and "PYTHONOPTIMIZE" in done.stderr
