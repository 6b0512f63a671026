"""The commands `capacity` and `simulate`: replicas for traffic, and latencies of replicas."""

from sextant.api.capacity import capacity as capacity_answer
from sextant.api.simulate import simulate as simulate_answer
from sextant.cli.printing import printing

capacity = printing(capacity_answer)
simulate = printing(simulate_answer)
