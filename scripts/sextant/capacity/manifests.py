"""Policies as files that platforms apply: KEDA's ScaledObject, and Ray Serve's config.

A file is the policy that was simulated: `read_policy` reads it as the same one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sextant.capacity.queries import query_of, with_labels
from sextant.deploy.deployment import kubernetes_name
from sextant.simulate.scaling import Reactive

_PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"


@dataclass(frozen=True)
class ScaledObject:
    """A policy as a ScaledObject of KEDA, to apply as it is but for names and address."""

    llm_id: str
    policy: Reactive

    @property
    def name(self) -> str:
        """Of the LLM, in lower case, with hyphens in place of what Kubernetes does not allow."""
        return kubernetes_name(self.llm_id)

    @property
    def thresholds(self) -> list[tuple[str, str]]:
        """The query of each trigger, and its threshold."""
        return [(query_of(trigger), f"{trigger.target:.10g}") for trigger in self.policy.triggers]

    def labelled(self, selector: str) -> "ScaledObject":
        """Return it for the servers of a selector, where its queries name none."""
        triggers = tuple(with_labels(trigger, selector) for trigger in self.policy.triggers)
        return replace(self, policy=replace(self.policy, triggers=triggers))

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest."""
        return {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"name": self.name},
            "spec": {"scaleTargetRef": {"name": self.name}, **self.scaling()},
        }

    def stack_values(self) -> dict[str, Any]:
        """Return the values of vLLM's production stack that make this ScaledObject."""
        keda = {"enabled": True, **self.scaling()}
        return {"servingEngineSpec": {"modelSpec": [{"name": self.name, "keda": keda}]}}

    def scaling(self) -> dict[str, Any]:
        """Return the `spec`, without what it scales."""
        policy = self.policy
        behavior = {
            name: {
                "stabilizationWindowSeconds": int(way.stabilization_s),
                "selectPolicy": way.select,
                "policies": [
                    {
                        "type": step.kind,
                        "value": int(step.value),
                        "periodSeconds": int(step.period_s),
                    }
                    for step in way.steps
                ],
            }
            for name, way in (("scaleUp", policy.up), ("scaleDown", policy.down))
        }
        triggers = [
            {
                "type": "prometheus",
                "metricType": "AverageValue" if trigger.is_average else "Value",
                "metadata": {"serverAddress": _PROMETHEUS, "query": query, "threshold": threshold},
            }
            for trigger, (query, threshold) in zip(policy.triggers, self.thresholds, strict=True)
        ]
        return {
            "minReplicaCount": policy.least,
            "maxReplicaCount": policy.most,
            "pollingInterval": int(policy.poll_s or policy.period_s),
            "cooldownPeriod": int(policy.cooldown_s),
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
            "triggers": triggers,
        }


@dataclass(frozen=True)
class RayConfig:
    """A policy of Ray Serve, which adds any number of replicas at once."""

    policy: Reactive

    @property
    def thresholds(self) -> list[tuple[str, str]]:
        """What it looks at, and the target."""
        return [("target_ongoing_requests", f"{self.policy.triggers[0].target:.10g}")]

    def to_dict(self) -> dict[str, Any]:
        """Return the part of a Serve config that scales a deployment."""
        policy = self.policy
        (trigger,) = policy.triggers
        config: Mapping[str, Any] = {
            "min_replicas": policy.least,
            "max_replicas": policy.most,
            "target_ongoing_requests": trigger.target,
            "look_back_period_s": trigger.window_s,
            "metrics_interval_s": policy.period_s,
            "upscale_delay_s": policy.up.stabilization_s,
            "downscale_delay_s": policy.down.stabilization_s,
        }
        return {"autoscaling_config": config}


def manifest_of(llm_id: str, policy: Reactive) -> ScaledObject | RayConfig:
    """Return the file of a policy."""
    return RayConfig(policy) if policy.is_rays else ScaledObject(llm_id, policy)
