"""Names that a SLURM cluster lacks are refused before anything is submitted."""

from pathlib import Path

import pytest

from sextant.base.errors import InputError
from sextant.experiment.slurm import SlurmNames

RIGHT = {"account": "lab", "partition": "gpu", "qos": "normal"}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with SLURM's commands, which know two accounts, two partitions and two QOS."""
    said = {
        "sacctmgr": "lab||normal,long\\nteaching|cpu|normal\\n",
        "sinfo": "gpu\\ncpu\\n",
    }
    for name, text in said.items():
        command = tmp_path / name
        command.write_text(f"#!/bin/sh\nprintf '{text}'\n")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"account": "default"}, "'slurm_account'.*'default'.*lab, teaching"),
        ({"partition": "gpuu"}, "'slurm_partition'.*'gpuu'.*cpu, gpu"),
        ({"partition": "gpu,gpuu"}, "'slurm_partition'.*'gpuu'.*cpu, gpu"),
        ({"qos": "fast"}, "'qos'.*'fast'.*long, normal"),
    ],
)
def test_a_name_that_the_cluster_lacks_is_refused(slurm, wrong, said) -> None:
    with pytest.raises(InputError, match=said):
        SlurmNames(**RIGHT | wrong).check()


@pytest.mark.parametrize(
    "right", [{}, {"account": "LAB"}, {"partition": "cpu,gpu"}, {"account": None, "qos": None}]
)
def test_names_that_the_cluster_knows_are_taken(slurm, right) -> None:
    SlurmNames(**RIGHT | right).check()


def test_nothing_is_refused_where_slurm_does_not_answer(slurm: Path) -> None:
    for command in slurm.iterdir():
        command.write_text("#!/bin/sh\nprintf 'lab||normal\\n'\nexit 1\n")
    SlurmNames("default", "gpuu", "fast").check()
    for command in slurm.iterdir():
        command.write_text("#!/bin/sh\n")  # a cluster that keeps no accounts
    SlurmNames("default", "gpuu", "fast").check()
