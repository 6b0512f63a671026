"""Replicas on several nodes: what their links carry, and what a sum across nodes waits."""

import pytest

from sextant.facts.gpu import is_as_good, profile_of_id
from sextant.facts.nodes import NETWORK_GB_S, link_gb_s, network_sync_ms


@pytest.mark.parametrize(
    ("name", "n_nodes"),
    [("8xH100-80GB", 1), ("9xH100-80GB", 2), ("64xH100-80GB", 8), ("72xGB200-186GB", 1)],
)
def test_a_node_is_an_nvlink_domain(name, n_nodes):
    profile = profile_of_id(name)
    assert profile.n_nodes == n_nodes
    is_whole = link_gb_s(profile) == profile.gpu.interconnect_gb_s
    assert is_whole == (network_sync_ms(profile) == 0) == (n_nodes == 1)


def test_a_sum_over_nodes_goes_through_nvlink_and_the_network():
    # Of 1 GB: 7/8 GB twice through NVLink, and each GPU's eighth, halved, twice over the network.
    seconds = 2 * (7 / 8 / 450 + 1 / 8 / 2 / NETWORK_GB_S)
    profile = profile_of_id("16xH100-80GB")
    assert 2 * 15 / 16 / link_gb_s(profile) == pytest.approx(seconds)
    assert network_sync_ms(profile) == pytest.approx(0.0275)
    # PCIe gen3 is slower than the network, and bounds it.
    assert link_gb_s(profile_of_id("16xT4-16GB")) == pytest.approx(16)


def test_more_gpus_on_more_nodes_are_no_better():
    one, two = (profile_of_id(f"{n}xH100-80GB") for n in (8, 16))
    assert not is_as_good(two, one)
    assert is_as_good(one, profile_of_id("4xH100-80GB"))
