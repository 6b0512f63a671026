"""Which cell: the ids that name a measurement."""

from dataclasses import asdict, dataclass

from sextant.base.ids import file_name
from sextant.experiment.variants import DEFAULT_VARIANT


@dataclass(frozen=True, order=True)
class CellKey:
    """An LLM × GPU profile × workload × scenario, on servers of a variant."""

    llm_id: str
    gpu_profile_id: str
    workload_id: str
    scenario_id: str
    variant_id: str = DEFAULT_VARIANT

    @property
    def folder(self) -> str:
        """Place of its results below those of its source; the default variant is not named."""
        *place, variant = map(file_name, asdict(self).values())
        return "/".join(place) + ("" if variant == DEFAULT_VARIANT else f"@{variant}")
