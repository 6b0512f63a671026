"""Names that a SLURM cluster lacks are refused before anything is submitted."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_executor_plugin_slurm.validation import get_forbidden_slurm_options

from sextant.base.errors import InputError
from sextant.experiment.job_request import JobRequest
from sextant.experiment.slurm import (
    SlurmNames,
    SlurmProfile,
    as_submitted,
    check_extra_options,
    check_requests,
    read_nodes,
    submission_warnings,
)

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
        ({"cell_partition": "gpuu"}, "'slurm_partition'.*'gpuu'.*cpu, gpu"),
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
    SlurmNames("lab", "gpuu", "fast").check()


def test_a_placeholder_is_refused_where_no_accounts_are_kept(slurm: Path) -> None:
    (slurm / "sacctmgr").write_text("#!/bin/sh\n")
    with pytest.raises(InputError, match="'default' is the profile's placeholder"):
        SlurmNames("default", "gpu").check()


def test_accounting_that_is_away_is_an_error_before_the_first_job(slurm, monkeypatch) -> None:
    SlurmNames("lab").check_accounting()  # sacctmgr answers
    (slurm / "sacctmgr").write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", str(slurm))
    with pytest.raises(InputError, match="neither sacctmgr nor sshare answers, so 'lab'"):
        SlurmNames("lab").check_accounting()
    SlurmNames(None).check_accounting()
    (slurm / "sshare").write_text("#!/bin/sh\n")
    (slurm / "sshare").chmod(0o755)
    SlurmNames("lab").check_accounting()


def test_an_extra_option_that_the_plugin_sets_is_refused() -> None:
    refused = get_forbidden_slurm_options()
    check_extra_options(["'--exclude='", "'--exclusive --reservation=lab'"], refused)
    for extra in ("'--exclude= --constraint=nvlink'", "'-C nvlink'"):
        said = r"'slurm_extra': (--constraint|-C) is an option .* resource of the node constraints"
        with pytest.raises(InputError, match=said):
            check_extra_options([extra], refused)


NODES = """\
gpu|64|192000|gpu:h100:8(S:0-1)|2-00:00:00
gpu|64|512000|gpu:A100:4,gpu:t4:1|2-00:00:00
cpu|128+|256000|(null)|12:00:00
free|8|16000|gpu:2|infinite
mig|8|16000|gpu:1g.10gb:7(S:0,1),gpu:nvidia_a100_3g.20gb:2(IDX:0-1),shard:8|1:00:00
new|n/a|16000|gpu|n/a
"""


@pytest.fixture
def nodes(slurm: Path):
    (slurm / "sinfo").write_text(f"#!/bin/sh\nprintf '%s' '{NODES}'\n")
    return read_nodes()


def test_nodes_are_read_as_sinfo_prints_them(nodes) -> None:
    assert [(node.partition, node.cores, node.memory_mb) for node in nodes] == [
        ("gpu", 64, 192_000),
        ("gpu", 64, 512_000),
        ("cpu", 128, 256_000),
        ("free", 8, 16_000),
        ("mig", 8, 16_000),
    ]
    gpus = [{"h100": 8}, {"a100": 4, "t4": 1}, {}, {"": 2}]
    gpus.append({"1g.10gb": 7, "nvidia_a100_3g.20gb": 2})
    assert [node.gpus for node in nodes] == gpus
    assert [node.minutes for node in nodes] == [2880, 2880, 720, float("inf"), 60]


def test_what_no_node_gives_is_named(nodes) -> None:
    def check(partition: str | None = "gpu", **wanted: object) -> None:
        request = {"gpus": 1, "gpu_model": "h100", "cores": 3, "memory_mb": 100, "minutes": 60}
        check_requests([JobRequest(**request | wanted)], partition, nodes)

    check()
    check(gpus=2, gpu_model=None, partition=None)
    check_requests([JobRequest(64, "h100", 1, 1, 1)], "gpu", [])  # SLURM does not answer
    for wanted, said in {
        ("gpus", 9): "'gpu_model': a cell asks for 9 h100 devices.* partition gpu has.* than 8",
        ("gpu_model", "b200"): "1 b200 devices.* than 0",
        ("cores", 65): "'cpus_per_task'.* 65 cores.* than 64",
        # The other node has the memory, and no h100.
        ("memory_mb", 250_000): "'mem_mb'.* 250,000 MB .* than 192,000. Fix: lower it",
        ("minutes", 3000): "'runtime'.* 3,000 minutes.* than 2,880",
    }.items():
        with pytest.raises(InputError, match=said):
            check(**dict([wanted]))
    with pytest.raises(InputError, match="any partition"):
        check(None, gpus=9)


def resources(**stated: str) -> dict[str, SimpleNamespace]:
    """Return resources as Snakemake has them."""
    return {name: SimpleNamespace(raw=raw) for name, raw in stated.items()}


def test_requests_are_those_of_the_profile() -> None:
    asked = JobRequest(1, "h100", 3, 250_000, 60)
    stated = {"mem_mb": "120000 * attempt", "runtime": "90", "cpus_per_task": "threads + 1"}
    assert as_submitted(asked, resources(**stated)) == JobRequest(1, "h100", 0, 120_000, 90)


def test_a_limit_of_submitted_jobs_is_named(slurm: Path) -> None:
    for text, warned in {"": False, "\n": False, "200\n\n50\n": True}.items():
        (slurm / "sacctmgr").write_text(f"#!/bin/sh\nprintf '{text}'\n")
        lines = submission_warnings(100)
        assert bool(lines) == warned and all("MaxSubmitJobs" in line for line in lines)
        assert not submission_warnings(50)


@pytest.mark.parametrize(
    ("of_all", "of_cells", "said"),
    [
        ({"slurm_account": "default"}, {}, "'slurm_account'.*'default'"),
        ({"qos": "fast"}, {}, "'qos'.*'fast'"),
        ({}, {"slurm_partition": "gpuu"}, "'slurm_partition'.*'gpuu'"),
        ({"slurm_extra": "--exclude= -C nvlink"}, {}, "'slurm_extra': -C"),
        ({}, {"slurm_extra": "-C nvlink"}, "'slurm_extra': -C"),
    ],
)
def test_a_profile_is_checked_for_all_jobs_and_for_cells(slurm, of_all, of_cells, said) -> None:
    right = {"slurm_account": "lab", "slurm_partition": "cpu", "qos": "normal"}
    profile = SlurmProfile(resources(**right), {"benchmark_cell": resources(slurm_partition="gpu")})
    profile.check(get_forbidden_slurm_options(), is_dry_run=False)
    wrong = SlurmProfile(
        resources(**right | of_all), {"benchmark_cell": resources(**of_cells), "other_rule": {}}
    )
    with pytest.raises(InputError, match=said):
        wrong.check(get_forbidden_slurm_options(), is_dry_run=True)


def test_accounting_may_be_away_in_a_dry_run(slurm: Path) -> None:
    for command in slurm.iterdir():
        command.write_text("#!/bin/sh\nexit 1\n")
    profile = SlurmProfile(resources(slurm_account="lab"), {})
    profile.check({}, is_dry_run=True)
    with pytest.raises(InputError, match="neither sacctmgr nor sshare answers"):
        profile.check({}, is_dry_run=False)


def test_cells_are_judged_as_they_are_submitted(nodes) -> None:
    asked = JobRequest(1, "h100", 3, 250_000, 60)
    lowered = {"benchmark_cell": resources(slurm_partition="gpu", mem_mb="100000")}
    SlurmProfile({}, lowered).check_cells([asked])
    with pytest.raises(InputError, match="partition gpu has more than 192,000"):
        SlurmProfile(resources(slurm_partition="gpu"), {}).check_cells([asked])
