"""Options of every command that reads a trace: which of its requests count."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sextant.trace.choice import TraceChoice


@dataclass(frozen=True, kw_only=True)
class TraceChoiceOptions:
    """Which requests of a trace count."""

    llm_in_trace: str | None = None  #: Only this LLM of the trace.
    service_in_trace: str | None = None  #: Only this service of the trace.

    def choice(self) -> "TraceChoice":
        """Return the choice."""
        from sextant.trace.choice import TraceChoice

        return TraceChoice(self.llm_in_trace, self.service_in_trace)
