"""A logger plugin of Snakemake that prints the jobs of a dry run as JSON, one a line.

`sextant plan` runs `snakemake --dry-run --logger sextant-plan` and reads them. Snakemake offers
the plugin interface to tools; the text of a dry run is for people.
"""

import json
import logging
import sys

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

workflow = None
"""Set by `workflow/rules/common.smk`: log records have neither configuration nor local rules."""


class LogHandler(LogHandlerBase):
    """Prints jobs and groups on stdout, warnings and errors on stderr."""

    writes_to_stream = True  # so Snakemake adds no text of its own
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record about a job, a group, the start of the workflow or a problem."""
        facts = _FACTS.get(getattr(record, "event", None))
        if facts:
            print(json.dumps(facts(record)), flush=True)
        elif record.levelno >= logging.ERROR:
            print(record.getMessage(), file=sys.stderr, flush=True)


def _started(_: logging.LogRecord) -> dict:
    # In a dry run `workflow.is_local` is true of every rule.
    return {"config": workflow.config, "local_rules": sorted(workflow._localrules)}


def _job(record: logging.LogRecord) -> dict:
    return {
        "rule": record.rule_name,
        "wildcards": dict(record.wildcards),
        "outputs": list(map(str, record.output)),
        "threads": record.threads,
        "resources": {name: _plain(value) for name, value in record.resources.items()},
        "is_in_group": bool(record.indent),  # members are printed below their group
    }


def _group(record: logging.LogRecord) -> dict:
    return {"group": record.group_id}


def _plain(value: object) -> object:
    """Return a resource as JSON has it; one that only a real run knows is null."""
    if type(value).__name__ == "TBDString":
        return None
    return value if isinstance(value, int | float) else str(value)


_FACTS = {
    LogEvent.WORKFLOW_STARTED: _started,
    LogEvent.JOB_INFO: _job,
    LogEvent.GROUP_INFO: _group,
}
