"""Whether a SLURM cluster knows the names that jobs are submitted with.

Snakemake's plugin (2.8.0) waits for ever where the account is unknown, and keeps sbatch's words to
itself where the partition is.
"""

import getpass
from collections.abc import Collection
from dataclasses import dataclass

from sextant.base.errors import InputError
from sextant.base.files import output_of


@dataclass(frozen=True)
class SlurmNames:
    """What `default-resources` of a profile say; None where they say nothing."""

    account: str | None = None
    partition: str | None = None
    qos: str | None = None

    def check(self) -> None:
        """Raise InputError for a name that the cluster lacks.

        Nothing is checked where SLURM does not answer: it may keep no accounts, and sbatch may know
        more than these commands.
        """
        user = getpass.getuser()
        columns = "format=account,partition,qos"
        shown = output_of(
            *("sacctmgr", "--noheader", "--parsable2", "show", "associations"),
            *(f"user={user}", columns),
        )
        associations = [line.split("|") for line in shown.splitlines()]
        accounts = {association[0] for association in associations}
        qos = {name for association in associations for name in association[-1].split(",") if name}
        partitions = {*output_of("sinfo", "--noheader", "--format=%R").split()}

        _require("slurm_account", self.account, accounts, f"accounts of {user}")
        _require("slurm_partition", self.partition, partitions, "partitions")
        _require("qos", self.qos, qos, f"QOS of {user}")


def _require(field: str, names: str | None, offered: Collection[str], what: str) -> None:
    """Raise InputError unless the cluster has all of these names, which have commas between."""
    if not names or not offered:
        return
    lower_names = {name.lower() for name in offered}
    for name in names.split(","):
        if name.strip().lower() not in lower_names:
            problem = f"{name.strip()!r} is none of SLURM's {what}"
            fix = f"write one of these into the workflow profile: {', '.join(sorted(offered))}"
            raise InputError(problem, field=field, fix=fix)
