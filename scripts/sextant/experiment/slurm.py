"""What a SLURM cluster does not know or cannot give, before anything is submitted to it.

Snakemake's plugin (2.8.0) waits for ever where the account is unknown, keeps sbatch's words to
itself where the partition is, and a job that no node can run is refused one by one.
"""

import getpass
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from sextant.base.errors import InputError
from sextant.base.files import output_if_well, output_of
from sextant.experiment.job_request import JobRequest

PLACEHOLDER = "default"
"""The account in the profile that ships, which is to be replaced."""
_DAY_MINUTES = 24 * 60
_PROFILE = "the workflow profile"
_FIELDS = {
    "gpu_model": "{} devices",
    "cpus_per_task": "cores",
    "mem_mb": "MB of memory",
    "runtime": "minutes",
}
"""What a job asks for, by the field that says so, and its unit."""


@dataclass(frozen=True)
class SlurmNames:
    """What a profile says; None where it says nothing."""

    account: str | None = None
    partition: str | None = None
    """Of all jobs; names have commas between."""
    qos: str | None = None
    cell_partition: str | None = None
    """Of the cells, where it is another one."""

    @property
    def of_cells(self) -> str | None:
        """The partition of the cells."""
        return self.cell_partition or self.partition

    def check(self) -> None:
        """Raise InputError for a name that the cluster lacks, or a placeholder.

        Nothing is checked where SLURM does not answer: it may keep no accounts, and sbatch may know
        more than these commands.
        """
        user = getpass.getuser()
        associations = _associations("account,partition,qos")
        accounts = {association[0] for association in associations}
        qos = {name for association in associations for name in association[-1].split(",") if name}
        partitions = {*output_of("sinfo", "--noheader", "--format=%R").split()}
        if self.account == PLACEHOLDER and partitions and not accounts:
            fix = f"write yours into {_PROFILE}, or delete the line"
            problem = f"{PLACEHOLDER!r} is the profile's placeholder"
            raise InputError(problem, field="slurm_account", fix=fix)

        _require("slurm_account", self.account, accounts, f"accounts of {user}")
        _require("slurm_partition", self.partition, partitions, "partitions")
        _require("slurm_partition", self.cell_partition, partitions, "partitions")
        _require("qos", self.qos, qos, f"QOS of {user}")

    def check_accounting(self) -> None:
        """Raise InputError where SLURM names no accounts because its accounting is away.

        The plugin looks the account up at each submission. Without an answer it waits for ever if
        the job is a group.
        """
        commands = (("sacctmgr", "--noheader", "show", "cluster"), ("sshare", "-U", "--noheader"))
        if self.account and all(output_if_well(*command) is None for command in commands):
            fix = "run again when one of them does"
            problem = (
                f"neither sacctmgr nor sshare answers, so {self.account!r} cannot be looked up"
            )
            raise InputError(problem, field="slurm_account", fix=fix)


@dataclass(frozen=True)
class SlurmProfile:
    """What a workflow profile says of jobs, by the names of resources; values are Snakemake's."""

    of_all: Mapping[str, Any]  #: `default-resources`.
    of_rules: Mapping[str, Mapping[str, Any]]  #: `set-resources`, by rule.

    @property
    def of_cells(self) -> Mapping[str, Any]:
        """What it says of the cells alone."""
        return self.of_rules.get("benchmark_cell", {})

    @property
    def names(self) -> SlurmNames:
        """The names of it that a cluster has to know."""
        return SlurmNames(
            account=_stated(self.of_all, "slurm_account"),
            partition=_stated(self.of_all, "slurm_partition"),
            qos=_stated(self.of_all, "qos"),
            cell_partition=_stated(self.of_cells, "slurm_partition"),
        )

    def check(self, refused: Mapping[str, str], *, is_dry_run: bool) -> None:
        """Raise InputError for names and options that SLURM or the plugin does not take.

        Args:
            refused: as of `check_extra_options`.
            is_dry_run: nothing is submitted, so accounting may be away.
        """
        self.names.check()
        extras = [
            _stated(stated, "slurm_extra") for stated in (self.of_all, *self.of_rules.values())
        ]
        check_extra_options(filter(None, extras), refused)
        if not is_dry_run:
            self.names.check_accounting()

    def check_cells(self, requests: Iterable[JobRequest]) -> None:
        """Raise InputError for a cell's job, as it is submitted, that no node can run."""
        submitted = [as_submitted(request, self.of_cells) for request in requests]
        check_requests(submitted, self.names.of_cells, read_nodes())


def _stated(resources: Mapping[str, Any], name: str) -> Any:
    return resources[name].raw if name in resources else None


def check_extra_options(extras: Iterable[str], refused: Mapping[str, str]) -> None:
    """Raise InputError for options in `slurm_extra` that the plugin sets itself.

    The plugin refuses a job with such an option. Of a group nothing is said, and it waits for ever.

    Args:
        extras: each `slurm_extra` of a profile, as Snakemake has it.
        refused: the plugin's patterns, and what each is.
    """
    for extra in extras:
        for pattern, name in refused.items():
            if match := re.search(pattern, extra):
                problem = f"{match[0].strip(' =')} is an option that Snakemake's plugin sets itself"
                fix = f"write the resource of the {name} into {_PROFILE} in its place"
                raise InputError(problem, field="slurm_extra", fix=fix)


def submission_warnings(n_jobs: int) -> list[str]:
    """Return a warning if SLURM lets this user submit fewer jobs at once than `n_jobs`."""
    rows = _associations("maxsubmit")
    limits = [int(cell) for cell in chain.from_iterable(rows) if cell.isdigit()]
    most = min(limits, default=n_jobs)
    if most >= n_jobs:
        return []
    problem = f"SLURM takes {most} jobs of yours at once (MaxSubmitJobs), {_PROFILE} has {n_jobs}"
    return [f"Warning: field 'jobs': {problem}. Fix: write jobs: {most}"]


def _associations(columns: str) -> list[list[str]]:
    """Return these columns of what SLURM grants this user, one row an association."""
    shown = output_of(
        *("sacctmgr", "--noheader", "--parsable2", "show", "associations"),
        *(f"user={getpass.getuser()}", f"format={columns}"),
    )
    return [line.split("|") for line in shown.splitlines()]


def _require(field: str, names: str | None, offered: Collection[str], what: str) -> None:
    """Raise InputError unless the cluster has all of these names, which have commas between."""
    if not names or not offered:
        return
    lower_names = {name.lower() for name in offered}
    for name in names.split(","):
        if name.strip().lower() not in lower_names:
            problem = f"{name.strip()!r} is none of SLURM's {what}"
            fix = f"write one of these into {_PROFILE}: {', '.join(sorted(offered))}"
            raise InputError(problem, field=field, fix=fix)


@dataclass(frozen=True)
class SlurmNode:
    """What a node gives in a partition."""

    partition: str
    cores: int
    memory_mb: int
    gpus: dict[str, int]  # by the scheduler's name of the type; "" for devices without one
    minutes: float

    def gives(self, gpu_model: str | None) -> tuple[float, float, float, float]:
        """Return what a job gets at most, by `_FIELDS`; without a type of device, of any one."""
        n_gpus = max(self.gpus.values(), default=0)
        if gpu_model is not None:
            n_gpus = self.gpus.get(gpu_model.lower(), 0)
        return n_gpus, self.cores, self.memory_mb, self.minutes


def read_nodes() -> list[SlurmNode]:
    """Return the nodes of all partitions, down or not; none where SLURM does not answer."""
    shown = output_of("sinfo", "--noheader", "--Node", "--format=%R|%c|%m|%G|%l")
    nodes = []
    for line in shown.splitlines():
        cells = line.split("|")
        if len(cells) == len(("partition", "cores", "memory", "gres", "limit")):
            partition, cores, memory_mb, gres, limit = (cell.strip().rstrip("+") for cell in cells)
            if cores.isdecimal() and memory_mb.isdecimal():  # words of a node that never came up
                sizes = int(cores), int(memory_mb)
                nodes.append(SlurmNode(partition, *sizes, _gpus(gres), _minutes(limit)))
    return nodes


def _gpus(gres: str) -> dict[str, int]:
    """Return the devices of `gpu:h100:8(S:0,1),gpu:1g.10gb:7,gpu:2`, by type."""
    n_by_model: dict[str, int] = {}
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        kind, *model, number = item.split(":") if ":" in item else (item, "1")
        if kind == "gpu" and number.isdecimal():
            name = ":".join(model).lower()
            n_by_model[name] = n_by_model.get(name, 0) + int(number)
    return n_by_model


def _minutes(limit: str) -> float:
    """Return the minutes of `2-00:00:00`, `12:00:00`, `30:00` or `infinite`."""
    days, _, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":") if part.isdigit()]
    if not parts:
        return float("inf")
    while len(parts) < len(("hours", "minutes", "seconds")):
        parts.insert(0, 0)
    hours, minutes, seconds = parts
    return _DAY_MINUTES * int(days or 0) + 60 * hours + minutes + seconds / 60


def check_requests(
    requests: Iterable[JobRequest], partition: str | None, nodes: Collection[SlurmNode]
) -> None:
    """Raise InputError for a cell's job that no node of its partition can run.

    `partition` may have commas; None stands for all partitions. Nothing is checked without nodes.
    """
    names = {name.strip().lower() for name in (partition or "").split(",") if name.strip()}
    inside = [node for node in nodes if not names or node.partition.lower() in names]
    where = f"partition {partition}" if partition else "any partition"
    for request in dict.fromkeys(requests) if inside else ():
        needs = request.gpus, request.cores, request.memory_mb, request.minutes
        left = inside
        for number, (field, unit) in enumerate(_FIELDS.items()):
            most = max(node.gives(request.gpu_model)[number] for node in left)
            left = [n for n in left if n.gives(request.gpu_model)[number] >= needs[number]]
            if not left:
                unit = unit.format(request.gpu_model or "GPU")
                problem = f"a cell asks for {needs[number]:,} {unit}, and no node of {where} has "
                problem += f"more than {most:,.0f}"
                fix = f"lower it (`set-resources`, `benchmark_cell` in {_PROFILE}), choose another "
                fix += "partition, or leave out the GPU profile"
                raise InputError(problem, field=field, fix=fix)


def as_submitted(request: JobRequest, overwritten: Mapping[str, Any]) -> JobRequest:
    """Return a request as the profile's `set-resources` changes it, in a first attempt.

    Values are Snakemake's; of an expression other than `N` and `N * attempt` nothing is known, and
    what it replaces counts as 0.
    """
    fields = {"gpu": "gpus", "cpus_per_task": "cores", "mem_mb": "memory_mb", "runtime": "minutes"}
    changes: dict[str, Any] = {}
    for name, field in fields.items():
        if name in overwritten:
            stated = re.fullmatch(r"(\d+)(\s*\*\s*attempt)?", str(overwritten[name].raw).strip())
            changes[field] = int(stated[1]) if stated else 0
    return replace(request, **changes)
