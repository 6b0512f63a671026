"""Options of metrics: what `ingest` and `rightsize` read of servers, or of Prometheus."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sextant.api.groups import option_of, seconds_of
from sextant.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sextant.engine.prometheus import MetricsQuery

_MATCHER = r'[A-Za-z_]\w*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"'
_MATCHERS = re.compile(rf"{_MATCHER}(?:\s*,\s*{_MATCHER})*")
_FROM_URL = ("last", "step", "match", "token_env")
_LAST = "24h"
_LAST_OF_SERVER = "1min"
_LONGEST_WAIT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class MetricsOptions:
    """Where metrics come from, and how much of them is read."""

    prometheus: str | None = None
    """Base URL of Prometheus, http://HOST:9090, in place of files; or a server's URL that ends in
    /metrics, which is read twice. Nothing is written there."""
    last: str | None = None
    """Time until now that is read of Prometheus, 24h by default; of a server the time between two
    readings, 1min by default."""
    step: str | None = None
    """Time between two values of Prometheus, e.g. 1min; by default 1,440 values, 15 s at least."""
    match: str | None = None
    """Matchers of labels for Prometheus, e.g. namespace="prod",model_name="llama"."""
    token_env: str | None = None
    """Environment variable with the bearer token of the URL."""
    interval: str | None = None
    """Time between two snapshots in files that do not say when they were taken, e.g. 10min."""

    def refuse_without_metrics(self) -> None:
        """Raise InputError if an option of metrics is stated, where none are read."""
        names = [name for name, value in vars(self).items() if value is not None]
        if names:
            fix = "leave it out, or give --format prometheus"
            raise InputError("no metrics are read", field=option_of(names[0]), fix=fix)

    def ingest(self, files: "Sequence[Path]", out: Path, seed: int) -> dict[str, Any]:
        """Make a trace of metrics, and return the report. Raises InputError for a wrong option."""
        from sextant.trace.metric_samples import read_files
        from sextant.trace.metrics_trace import ingest_metrics

        if bool(files) == (self.prometheus is not None):
            fix = "give one of the two"
            raise InputError("metrics are needed", field="source, --prometheus", fix=fix)
        outputs = (out, rejected_of(out), report_of(out))
        if self.prometheus is not None:
            from sextant.engine.prometheus import fetch_metrics

            if self.interval is not None:
                problem = "the readings of a URL say when they were taken"
                raise InputError(problem, field="--interval", fix="leave it out")
            return ingest_metrics(fetch_metrics(self._query(self.prometheus)), outputs, seed=seed)

        for name in _FROM_URL:
            if getattr(self, name) is not None:
                fix = "leave it out, or give --prometheus"
                raise InputError("files are read", field=option_of(name), fix=fix)
        taken = {path.resolve() for path in files}
        for path in outputs:
            if path.resolve() in taken:
                fix = "give each file a name of its own"
                raise InputError("the output would replace a source", file=path, fix=fix)
        interval_s = None if self.interval is None else seconds_of(self.interval, "--interval")
        inputs = {f"source-{number}": path for number, path in enumerate(files, start=1)}
        texts = read_files(files)
        return ingest_metrics(texts, outputs, interval_s=interval_s, seed=seed, inputs=inputs)

    def _query(self, url: str) -> "MetricsQuery":
        from sextant.base.network import host_and_port
        from sextant.engine.http import ServerAddress, api_key_of
        from sextant.engine.prometheus import MetricsQuery

        base_url = url.strip().rstrip("/")
        try:
            host_and_port(base_url)
        except InputError as error:
            raise error.at(field="--prometheus") from None
        token = None
        if self.token_env is not None:
            token = api_key_of(self.token_env, "--token-env")
            if token is None:
                problem = f"the environment variable {self.token_env} is not set"
                raise InputError(problem, field="--token-env", fix="set it to the token")
        if self.match is not None and not _MATCHERS.fullmatch(self.match.strip()):
            fix = 'give LABEL="VALUE", with commas between'
            raise InputError(f"{self.match!r} are no matchers", field="--match", fix=fix)

        query = MetricsQuery(
            ServerAddress(base_url, "", token),
            last_s=1.0,
            step_s=None if self.step is None else seconds_of(self.step, "--step"),
            match=(self.match or "").strip(),
        )
        if not query.is_server:
            return query.over(seconds_of(self.last or _LAST, "--last"))
        for name in ("step", "match"):
            if getattr(self, name) is not None:
                fix = "leave it out, or give the base URL of Prometheus"
                raise InputError("a server is read", field=option_of(name), fix=fix)
        last_s = seconds_of(self.last or _LAST_OF_SERVER, "--last")
        if last_s > _LONGEST_WAIT_S:
            problem = f"{last_s:,.0f} s between two readings"
            fix = "give up to 1h, or take two snapshots yourself"
            raise InputError(problem, field="--last", fix=fix)
        return query.over(last_s)


def rejected_of(out: Path) -> Path:
    """Return the file for the rows that a trace lacks."""
    return out.with_suffix(".rejected.parquet")


def report_of(out: Path) -> Path:
    """Return the file for the report on a trace."""
    return out.with_suffix(".report.json")
