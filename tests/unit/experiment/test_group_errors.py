"""A group of jobs that failed says why, as Snakemake's own records do not."""

import logging
from types import SimpleNamespace

import pytest
from snakemake.jobs import GroupJob
from snakemake.logging import logger

from sextant.experiment.group_errors import GroupErrors

WORDS = "SLURM sbatch failed. The error message was 'sbatch: error: no such \x1b[2J feature'."
GROUP = SimpleNamespace(groupid="answers", jobs=[])


@pytest.fixture
def records() -> list[logging.LogRecord]:
    """The records that Snakemake's logger hands on."""
    kept: list[logging.LogRecord] = []
    handler, added = logging.Handler(), GroupErrors()
    handler.emit = kept.append
    logger.addHandler(handler)
    logger.addFilter(added)
    yield kept
    logger.removeFilter(added)
    logger.removeHandler(handler)


def test_what_sbatch_said_of_a_group_is_in_its_record(records) -> None:
    GroupJob.log_error(GROUP, f"{WORDS}\n    sbatch call:\n        sbatch --parsable …\n")
    (record,) = records
    said = "The error message was 'sbatch: error: no such \\x1b[2J feature'."
    assert record.msg == f"Error in group answers: SLURM sbatch failed. {said}"


def test_a_group_without_a_reason_and_other_records_stay(records) -> None:
    GroupJob.log_error(GROUP)
    msg = "not of a group"
    logger.error("Error in rule %s", msg)
    assert [record.getMessage() for record in records] == [
        "Error in group answers",
        "Error in rule not of a group",
    ]
