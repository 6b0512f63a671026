"""The requests of a case, whatever load they make."""

from sextant.ask.case import Case
from sextant.workload.lengths import Length, RequestLengths, length_sampler
from sextant.workload.requests import SteadyTraffic


def requests_of_case(case: Case) -> SteadyTraffic:
    """Return the requests of a case, at 1/s, as `capacity` takes them.

    They arrive at random (Poisson) where the workload has no steady arrivals.
    """
    question = case.question
    if question.workload is None:
        lengths = question.requests
        if lengths is None:
            lengths = RequestLengths(*(Length(mean, mean) for mean in case.lengths[0]))
        return SteadyTraffic("given lengths", length_sampler(lengths), 1.0, 1.0, question.seed)
    from sextant.ask.traffic import traffic_at_rate  # few questions name a workload

    drawn = traffic_at_rate(1.0, question.workload, None, first_seed=question.seed)
    steady = drawn.steady()
    return steady or SteadyTraffic(drawn.name, drawn.requests, 1.0, 1.0, question.seed)
