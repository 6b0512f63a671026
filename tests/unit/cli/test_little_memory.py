"""Questions are answered where memory is limited, as on a laptop or in a job of a cluster."""

import re
import resource
import shlex
import subprocess
import sys

from sextant.base.files import read_plain
from support import ROOT

LIMIT_BYTES = 8_000_000 * 1024  # `ulimit -v 8000000`
MAIN = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, ({LIMIT_BYTES}, {LIMIT_BYTES}))
from sextant.cli.app import main
main()
"""


def test_the_readmes_question_is_answered_in_8_gb() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    command = re.findall(r"^sextant (recommend .*)$", page, re.M)[0]
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *shlex.split(command)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "meets both limits with probability" in " ".join(done.stdout.split())


def test_a_file_is_refused_by_its_size_and_takes_no_more_memory_than_it_has(tmp_path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, hard))
    try:
        assert read_plain(path) == b"{}"  # though 16 GiB would be read
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
