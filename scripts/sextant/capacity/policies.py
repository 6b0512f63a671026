"""Autoscaling policies as their files say: what Kubernetes, KEDA or Ray Serve apply is simulated.

A file is a KEDA `ScaledObject`, a `HorizontalPodAutoscaler` (autoscaling/v2), values of vLLM's
production stack with `keda`, a Ray Serve config with `autoscaling_config`, or a CSV file with the
replicas over time: `t_s` and `ready` (that serve) or `replicas` (that are ordered).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import reading
from sextant.base.sheets import read_yaml
from sextant.capacity.queries import Unread, read_query
from sextant.decide.most_replicas import MOST_REPLICAS
from sextant.simulate.scaling import (
    Direction,
    Reactive,
    ScalingPolicy,
    Step,
    Timeline,
    Trigger,
)

_PAUSED = "autoscaling.keda.sh/paused"
"""What KEDA's annotations that pause a policy begin with."""
_LATE_S = 60.0
"""Latest time of the first row of replicas over time; its replicas count from the start."""
_QUANTITY = re.compile(r"([0-9]*\.?[0-9]+)(m|k|)")
_PREFIXES = {"m": 1e-3, "k": 1e3, "": 1.0}


def read_policy(path: Path) -> ScalingPolicy:
    """Return the policy of a file. Raises InputError where it has none that is simulated."""
    if path.suffix == ".csv":
        return _read_timeline(path)
    content = read_yaml(path)
    spec = content.get("spec")
    if content.get("kind") == "HorizontalPodAutoscaler" and isinstance(spec, dict):
        return _Manifest(path, spec).hpa()
    if content.get("kind") == "ScaledObject" and isinstance(spec, dict):
        _Manifest(path, content).below("metadata", "annotations").refuse_paused()
        return _Manifest(path, spec).keda()
    sections = [it for it in _sections(content) if it[0] in ("keda", "autoscaling_config")]
    if len(sections) > 1:
        fix = "give the policy of one LLM, in a file of its own"
        raise InputError(f"{len(sections)} policies", file=path, field=sections[0][0], fix=fix)
    for key, value in sections:
        if key == "keda":
            return _Manifest(path, value).keda()
        return _Manifest(path, value).ray()
    problem = "no autoscaling policy"
    fix = "give a ScaledObject, a HorizontalPodAutoscaler, values with `keda`, a Ray Serve config "
    raise InputError(problem, file=path, fix=fix + "with `autoscaling_config`, or a .csv file")


def _sections(content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all keys that have keys below them, at any depth."""
    if isinstance(content, list):
        for item in content:
            yield from _sections(item)
    elif isinstance(content, dict):
        for key, value in content.items():
            if isinstance(value, dict):
                yield str(key), value
            yield from _sections(value)


def _read_timeline(path: Path) -> Timeline:
    """Return the replicas over time of a CSV file."""
    with reading(path, ValueError, OSError, fix="write a CSV file with t_s and replicas"):
        table = pd.read_csv(path)
    name = "ready" if "ready" in table else "replicas"
    for column in ("t_s", name):
        fix = "give t_s, from 0 on, ascending, and ready or replicas, whole numbers from 0"
        if column not in table:
            raise InputError("column missing", file=path, field=column, fix=fix)
        values = pd.to_numeric(table[column], errors="coerce")
        is_bent = values % 1 > 0 if column == name else values.diff() <= 0
        is_wrong = ~((values >= 0) & (values < np.inf)) | is_bent
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            problem = f"{table[column].iloc[row]} is wrong"
            raise InputError(problem, file=path, row=row + 2, field=column, fix=fix)

    times_s = table["t_s"]
    replicas = table[name]
    if not 0 < replicas.max() <= MOST_REPLICAS:
        problem = "never a replica, or too many"
        fix = f"give 1 to {MOST_REPLICAS:,} at most"
        raise InputError(problem, file=path, field=name, fix=fix)
    if times_s.iloc[0] > _LATE_S:
        problem = f"the first time is {times_s.iloc[0]:g} s"
        fix = "begin with a row of 0 s"
        raise InputError(problem, file=path, row=2, field="t_s", fix=fix)
    from_start_s = np.append(0.0, times_s.to_numpy(float)[1:])
    return Timeline(from_start_s, replicas.to_numpy(int), is_ready=name == "ready")


class _Manifest:
    """Fields of a file, read with their defaults."""

    def __init__(self, path: Path, fields: Mapping[str, Any]) -> None:
        self.path = path
        self.fields = fields

    def wrong(self, problem: str, field: str, fix: str) -> InputError:
        return InputError(problem, file=self.path, field=field, fix=fix)

    def number(
        self, name: str, default: float | None = None, least: float = 0.0, *, is_whole: bool = False
    ) -> float:
        """Return a number, which may be a quantity of Kubernetes, e.g. 500m."""
        value = self.fields.get(name, default)
        match = _QUANTITY.fullmatch(str(value))
        number = float(match[1]) * _PREFIXES[match[2]] if match else -1.0
        if number < least or (is_whole and number % 1):
            wanted = f"a {'whole ' * is_whole}number from {least:g} on"
            problem = "missing" if value is None else f"{value} is not {wanted}"
            raise self.wrong(problem, name, f"give {wanted}")
        return number

    def replicas(
        self, least: str, most: str, usual: tuple[int, int | None], fewest: int = 0
    ) -> dict[str, int]:
        """Return the fewest and the most replicas, of these fields."""
        low = self.number(least, usual[0], fewest, is_whole=True)
        high = self.number(most, usual[1], 1, is_whole=True)
        if high > MOST_REPLICAS:
            raise self.wrong(f"{high:,.0f} replicas", most, f"give at most {MOST_REPLICAS:,}")
        if low > high:
            raise self.wrong(f"{low:g} is above {high:g}", least, "lower it")
        return {"least": int(low), "most": int(high)}

    def below(self, *names: str) -> "_Manifest":
        """Return the fields below some; none where they are missing."""
        fields: Any = self.fields
        for name in names:
            fields = fields.get(name) or {}
            if not isinstance(fields, dict):
                raise self.wrong("has no keys", name, "give keys and values")
        return _Manifest(self.path, fields)

    def items(self, name: str) -> "list[_Manifest]":
        """Return a list of fields, empty where it is missing."""
        rows = self.fields.get(name) or []
        if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
            raise self.wrong("not a list of keys and values", name, "give one")
        return [_Manifest(self.path, row) for row in rows]

    def refuse_paused(self) -> None:
        """Raise InputError where these annotations pause an autoscaler."""
        for name in self.fields:
            if str(name).startswith(_PAUSED):
                raise self.wrong("the policy is paused", str(name), "leave it out")

    def refuse_unsimulated(self) -> None:
        """Raise InputError for what a ScaledObject may say and a simulation does not follow."""
        if self.fields.get("enabled", True) is not True:
            raise self.wrong("the policy is switched off", "enabled", "set it to true")
        if self.below("advanced", "scalingModifiers").fields:
            raise self.wrong("formulas are not simulated", "scalingModifiers", "leave it out")
        if self.fields.get("fallback") is not None:
            fix = "leave it out: in a simulation no metric is missing"
            raise self.wrong("what happens without metrics is not simulated", "fallback", fix)
        if self.fields.get("idleReplicaCount") is not None:
            fix = "leave it out, and set minReplicaCount to 0"
            raise self.wrong("idle replicas are not simulated", "idleReplicaCount", fix)

    def keda(self) -> Reactive:
        """Return the policy of a ScaledObject's spec (keda.sh/docs, scaledobject-spec)."""
        self.refuse_unsimulated()
        poll_s = self.number("pollingInterval", 30, 1, is_whole=True)
        triggers = []
        for row in self.items("triggers"):
            metadata = row.below("metadata")
            if (kind := row.fields.get("type")) != "prometheus":
                raise self.wrong(f"{kind} is not simulated", "triggers", "give type: prometheus")
            metric_type = row.fields.get("metricType", "AverageValue")
            if metric_type not in ("AverageValue", "Value"):
                fix = "use AverageValue or Value"
                raise row.wrong(f"{metric_type} is not simulated", "metricType", fix)
            if metadata.number("activationThreshold", 0) != 0:
                fix = "leave it out: any value above 0 orders the first replica"
                raise row.wrong("another threshold from 0 to 1", "activationThreshold", fix)
            is_average = metric_type == "AverageValue"
            target = metadata.number("threshold", least=1e-9)
            triggers.append(self._trigger(metadata.fields.get("query"), target, is_average))
        behavior = self.below("advanced", "horizontalPodAutoscalerConfig", "behavior")
        replicas = self.replicas("minReplicaCount", "maxReplicaCount", (0, 100))
        cooldown_s = self.number("cooldownPeriod", 300, is_whole=True)
        policy = behavior.reactive(triggers, replicas, cooldown_s)
        # Kubernetes looks itself, but for the first replica.
        is_polled = policy.least == 0 and poll_s > policy.period_s
        return replace(policy, poll_s=poll_s) if is_polled else policy

    def hpa(self) -> Reactive:
        """Return the policy of a HorizontalPodAutoscaler's spec (autoscaling/v2)."""
        triggers = []
        for row in self.items("metrics"):
            kind = str(row.fields.get("type"))
            if kind not in ("External", "Pods", "Object"):
                fix = "give metrics of type External, Pods or Object"
                raise self.wrong(f"{kind} is not simulated", "metrics", fix)
            of = row.below(kind.lower())
            target = of.below("target")
            is_average = "averageValue" in target.fields
            value = target.number("averageValue" if is_average else "value", least=1e-9)
            metric = of.below("metric")
            labels = metric.below("selector", "matchLabels").fields.items()
            selector = ",".join(f'{name}="{text}"' for name, text in labels)
            query = f"{metric.fields.get('name')}{{{selector}}}" if selector else ""
            name = query or metric.fields.get("name")
            triggers.append(self._trigger(name, value, is_average))
        replicas = self.replicas("minReplicas", "maxReplicas", (1, None), fewest=1)
        return self.below("behavior").reactive(triggers, replicas)

    def ray(self) -> Reactive:
        """Return the policy of Ray Serve's `autoscaling_config`, by the same rule.

        It looks at the mean of a period, and acts on what is wanted for the whole of a delay.
        """
        for name in ("upscaling_factor", "downscaling_factor", "smoothing_factor"):
            if self.fields.get(name) not in (None, 1, 1.0):
                raise self.wrong("factors are not simulated", name, "leave it out")
        target = self.number("target_ongoing_requests", 2, 1e-9)
        window_s = self.number("look_back_period_s", 30)
        return Reactive(
            (Trigger("requests_in_flight", target, window_s=window_s),),
            **self.replicas("min_replicas", "max_replicas", (1, 1)),
            period_s=self.number("metrics_interval_s", 10, 1e-3),
            tolerance=0.0,
            up=Direction(self.number("upscale_delay_s", 30)),
            down=Direction(self.number("downscale_delay_s", 600)),
            cooldown_s=self.number("downscale_delay_s", 600),
        )

    def reactive(
        self, triggers: list[Trigger], replicas: Mapping[str, int], cooldown_s: float = 0.0
    ) -> Reactive:
        """Return the policy of triggers and of these fields, an autoscaler's `behavior`."""
        if not triggers:
            raise self.wrong("no triggers", "triggers, metrics", "give one or more")
        usual = Reactive((), 1)
        up = self._direction("scaleUp", usual.up)
        down = self._direction("scaleDown", usual.down)
        return Reactive(
            tuple(triggers),
            most=replicas["most"],
            least=replicas["least"],
            up=up,
            down=down,
            cooldown_s=cooldown_s,
        )

    def _direction(self, name: str, usual: Direction) -> Direction:
        of = self.below(name)
        steps = []
        for row in of.items("policies"):
            kind = row.fields.get("type")
            if kind not in ("Pods", "Percent"):
                raise self.wrong(f"{kind} is unknown", f"{name}.policies", "use Pods or Percent")
            sizes = (
                row.number(field_name, None, 1, is_whole=True)
                for field_name in ("value", "periodSeconds")
            )
            steps.append(Step(kind, *sizes))
        select = of.fields.get("selectPolicy", "Max")
        if select not in ("Max", "Min", "Disabled"):
            raise self.wrong(f"{select} is unknown", "selectPolicy", "use Max, Min or Disabled")
        usual_s = usual.stabilization_s
        stabilization_s = of.number("stabilizationWindowSeconds", usual_s, is_whole=True)
        return Direction(stabilization_s, tuple(steps) or usual.steps, select)

    def _trigger(self, query: Any, target: float, is_average: bool) -> Trigger:
        """Return what a query of Prometheus, or a metric's name, reads of vLLM."""
        reading = read_query(str(query))
        if isinstance(reading, Unread):
            raise self.wrong(reading.problem, "query, metric", reading.fix)
        return reading.trigger(target, is_average=is_average)
