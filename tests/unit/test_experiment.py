"""What an experiment says of its files."""

import hashlib
import os
from types import SimpleNamespace

from sextant.experiment.definition import trace_sha256

EXPERIMENT = SimpleNamespace(traces={"ours": {"dataset": "ours.csv"}}, datasets={})


def test_the_checksum_of_a_local_trace_is_that_of_its_present_content(tmp_path, monkeypatch):
    for content in (b"one", b"two!", b"two?"):
        for folder in (tmp_path, tmp_path / "elsewhere"):
            folder.mkdir(exist_ok=True)
            monkeypatch.chdir(folder)
            said = content + folder.name.encode()
            (folder / "ours.csv").write_bytes(said)
            os.utime("ours.csv", ns=(0, content[-1]))
            assert trace_sha256(EXPERIMENT, "ours") == hashlib.sha256(said).hexdigest()
