"""Two real servers on one node: loopback alone, ports and keys of their own, files in scratch."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

from real_vllm import CONFIG, NEEDS_VLLM, SMALL, random_weights
from real_vllm import SETTINGS as ONE_SERVER
from sextant.base.scratch import scratch_folder
from sextant.bench.cell import model_folder
from sextant.engine.http import get
from sextant.engine.vllm import VLLMServer

pytestmark = [pytest.mark.slow, *NEEDS_VLLM]
SETTINGS = replace(ONE_SERVER, start_timeout_s=600)


def listening(server: VLLMServer) -> list[tuple[str, int]]:
    """Return the addresses on which any process of a server listens, TCP and UDP."""
    keeper = psutil.Process(server.pids[0])
    found = []
    for process in (keeper, *keeper.children(recursive=True)):
        for connection in process.net_connections("inet"):
            if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE) and connection.laddr:
                found.append((connection.laddr.ip, connection.laddr.port))
    return found


def test_two_servers_on_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CACHE_HOME", "VLLM_CACHE_ROOT"):
        monkeypatch.delenv(name, raising=False)
    place = tempfile.mkdtemp(prefix="sx-")
    monkeypatch.setenv("SLURM_TMPDIR", place)
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        servers = []
        for number in range(2):
            scratch = stack.enter_context(scratch_folder(tmp_path))
            model, core = (
                stack.enter_context(model_folder(CONFIG, scratch)),
                cores[number % len(cores)],
            )
            spec = random_weights(model, SMALL, 1024, 256, core, scratch=scratch)
            servers.append(VLLMServer(spec, SETTINGS, tmp_path / f"{number}.log"))
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(stack.enter_context, servers))
        first, second = servers
        assert first.port != second.port and first.api_key != second.api_key
        for server, other in ((first, second), (second, first)):
            addresses = listening(server)
            assert ("127.0.0.1", server.port) in addresses
            assert all(ip_address(address).is_loopback for address, _ in addresses), addresses
            assert get(server.target, "/v1/models")[0] == 200
            assert get(replace(server.target, api_key=other.api_key), "/v1/models")[0] == 401
            assert list(server.spec.scratch.glob("cache/vllm/modelinfos/*.json"))
    assert list(Path(place).iterdir()) == []
    left = [path for path in home.rglob("*") if path.is_file()]
    assert {path.parent for path in left} == {home / ".cache" / "vllm" / "modelinfos"}
