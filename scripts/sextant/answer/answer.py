"""What all answers on one LLM have: the option to rent, how sure it is, and what it rests on."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from sextant.answer.option import Option
from sextant.answer.pools import PoolsOption, pools_pay
from sextant.answer.variations import Variation
from sextant.ask.api_prices import ApiComparison
from sextant.ask.serving import Serving
from sextant.ask.source import Source
from sextant.ask.start_up import NOT_STARTED, StartUp
from sextant.base.errors import InputError
from sextant.deploy.deployment import (
    ReplicaDeployment,
    ScalingSpec,
    deployment_facts,
    deployment_of,
)
from sextant.deploy.settings import ReplicaSettings
from sextant.facts.gpu import (
    GPUProfile,
    PriceOrigin,
    old_price_lines,
    price_origins,
    share_lines,
)


class Alternative(Protocol):
    """A GPU profile of an answer: what it takes, or why it is none."""

    @property
    def gpu_profile_id(self) -> str:
        """Its name."""

    @property
    def is_gpu_measured(self) -> bool:
        """Whether the source has points of this type of GPU."""

    def to_dict(self) -> dict[str, Any]:
        """Return its row in the JSON."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is answered for one LLM, by whichever way the replicas are sized."""

    llm_id: str
    basis: str
    """What the latencies come from: `measured`, a predictor's name, or `simulated`."""
    chosen: Option
    """The recommended option."""
    alternatives: Sequence[Alternative]
    """One per GPU profile."""
    risk: float | None
    """Largest probability of missing the SLO that was asked for."""
    source: Source
    gpu_profiles: Collection[GPUProfile]
    """The candidates, with their prices."""
    warnings: Sequence[str] = ()
    """What to know before the answer is used: assumptions, estimates, limits of the evidence."""
    serving: Serving | None = None
    """Lengths, engine and precision that were asked about; None: as measured."""
    settings_on: Callable[[GPUProfile], ReplicaSettings] | None = None
    """Returns what is assumed of a replica on a GPU profile; None: not known."""
    api: ApiComparison | None = None
    """Own GPUs beside an API's prices; None: not asked for, or not known."""
    variations: Sequence[Variation] = ()
    """What would be recommended for other values, where these are asked about (`--vary`)."""

    @property
    def has_option(self) -> bool:
        """Whether any option is recommended."""
        return self.chosen.gpu_profile_id is not None

    @property
    def chosen_profile(self) -> GPUProfile | None:
        """The recommended GPU profile, with its price; None: there is none."""
        name = self.chosen.gpu_profile_id
        return next(
            (profile for profile in self.gpu_profiles if profile.gpu_profile_id == name), None
        )

    @cached_property
    def settings(self) -> ReplicaSettings | None:
        """What is assumed of a replica of the recommended option; None: there is none."""
        if self.chosen_profile is None or self.settings_on is None:
            return None
        return self.settings_on(self.chosen_profile)

    @property
    def start_up(self) -> StartUp | None:
        """How a replica of the recommended option starts; None: there is none."""
        return None if self.settings is None else self.settings.start_up

    def start_up_on(self, profile_id: str) -> StartUp | None:
        """Return how a replica on one of the candidates starts; None: it is not known."""
        for profile in self.gpu_profiles:
            if profile.gpu_profile_id == profile_id and self.settings_on is not None:
                return self.settings_on(profile).start_up
        return None

    @property
    def replica_lines(self) -> list[str]:
        """How a replica of what is recommended lies on its GPUs; nothing where none is."""
        pools = self.separate_pools
        if pools is None or not self.do_pools_pay:
            return [self.start_up.line()] if self.start_up else []
        profile_ids = dict.fromkeys(pool.gpu_profile_id for pool in (pools.prefill, pools.decode))
        return [start_up.line() for start_up in map(self.start_up_on, profile_ids) if start_up]

    @property
    def separate_pools(self) -> PoolsOption | None:
        """The cheapest two pools, for prefill and decode apart; None: there are none."""
        return None

    @property
    def do_pools_pay(self) -> bool:
        """Whether prefill and decode apart were asked about, and are better."""
        return pools_pay(self.separate_pools, self.chosen)

    def pools_facts(self) -> dict[str, Any] | None:
        """Return the entry of the two pools in the JSON; None: there are none."""
        if self.separate_pools is None:
            return None
        facts = self.separate_pools.to_dict()
        for name in ("prefill", "decode"):
            if start_up := self.start_up_on(facts[name]["gpu_profile_id"]):
                facts[name] |= start_up.facts()
        return facts

    @property
    def scaling(self) -> ScalingSpec | None:
        """The policy that adds and removes replicas; None: they stay."""
        return None

    def deployments(self) -> list[ReplicaDeployment]:
        """Return what starts the recommended option; nothing where nothing is recommended.

        Raises:
            InputError: no command or container of the engine is known for the GPUs, or prefill and
                decode apart are the better answer.
        """
        if self.do_pools_pay:
            problem = "prefill and decode apart are the better answer: no files are written of it"
            fix = "leave it out for replicas that do both"
            raise InputError(problem, field="--disaggregated", fix=fix)
        if self.settings is None or self.chosen.replicas is None:
            return []
        return [deployment_of(self.settings, self.chosen.replicas, self.scaling)]

    @property
    def serving_facts(self) -> dict[str, Any] | None:
        """How the LLM is served, and what starts that; None: neither is known."""
        stated = self.serving.facts() if self.serving else {}
        return {**stated, **deployment_facts(self.deployments)} or None

    @cached_property
    def price_origins(self) -> list[PriceOrigin]:
        """Whose prices the candidates have, and from when."""
        return price_origins(
            (profile.price_source, profile.price_as_of) for profile in self.gpu_profiles
        )

    @cached_property
    def all_warnings(self) -> list[str]:
        """The warnings, old prices and machines that are rented whole included."""
        lines = old_price_lines(self.price_origins)
        if self.chosen_profile is not None and self.chosen.replicas is not None:
            lines += share_lines(self.chosen_profile, self.chosen.replicas)
        starting = self.start_up.notes() if self.start_up else []
        return [*self.warnings, *starting, *lines]

    def shared_facts(
        self, slo: Mapping[str, Any], headroom: Any, evidence: Sequence[Any]
    ) -> dict[str, Any]:
        """Return the entries that the JSON of every answer has.

        Args:
            slo: load and limits.
            headroom: room to each limit, None where it is not known.
            evidence: the nearest measurements.
        """
        profile = self.chosen_profile
        variations = [variation.to_dict() for variation in self.variations]
        return {
            "llm_id": self.llm_id,
            **self.chosen._asdict(),
            "price_source": profile and profile.price_source,
            "price_as_of": profile and profile.price_as_of,
            **(self.start_up.facts() if self.start_up else NOT_STARTED),
            "basis": self.basis,
            "risk": self.risk,
            "slo": slo,
            "serving": self.serving_facts,
            "alternatives": [alternative.to_dict() for alternative in self.alternatives],
            "headroom": headroom,
            "evidence": [*evidence],
            "characterization": self.source.facts(),
            "prices": [origin._asdict() for origin in self.price_origins],
            "warnings": self.all_warnings,
            **({"variations": variations} if variations else {}),
        }
