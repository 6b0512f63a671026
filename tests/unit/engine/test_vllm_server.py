"""The server's command, environment and end, on the fake engine."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from socket import SO_REUSEADDR, SO_REUSEPORT, SOL_SOCKET

import psutil
import pytest

from fake_servers import CPU, GPU, SETTINGS
from sextant.base.errors import InputError
from sextant.base.network import reserve_port
from sextant.engine.http import get
from sextant.engine.protocol import ServerError
from sextant.engine.vllm import VLLMServer
from sextant.engine.vllm_command import command, environment, n_blocks
from support import PATIENCE_S


@pytest.fixture
def start(tmp_path):
    """Make servers that log to a temporary folder; those for GPUs are tied to no core."""

    def make(**changes) -> VLLMServer:
        return VLLMServer(GPU, replace(SETTINGS, **changes), tmp_path / "logs" / "server.log")

    return make


def options(arguments: list[str]) -> dict[str, str]:
    pairs = zip(arguments, [*arguments[1:], "--"], strict=True)
    return {
        name: "" if value.startswith("--") else value
        for name, value in pairs
        if name.startswith("--")
    }


def descendants(server: VLLMServer) -> list[psutil.Process]:
    keeper = psutil.Process(server.pids[0])
    return [keeper, *keeper.children(recursive=True)]


def test_a_cpu_and_gpus_are_told_different_things():
    # 1000 tokens take 63 blocks of 16; vLLM keeps one more for itself.
    assert n_blocks(CPU, SETTINGS) == 64
    assert n_blocks(replace(CPU, batch_weight_tokens=1008), SETTINGS) == 64
    cpu, gpu = (options(command(spec, SETTINGS, 8123)) for spec in (CPU, GPU))
    assert (cpu["--num-gpu-blocks-override"], cpu["--block-size"]) == ("64", "16")
    assert cpu["--kv-cache-memory-bytes"] == str(64 * 16 * 512)
    assert (gpu["--tensor-parallel-size"], gpu["--gpu-memory-utilization"]) == ("2", "0.9")
    third = options(command(replace(GPU, memory_share=1 / 3), SETTINGS, 8123))
    assert third["--gpu-memory-utilization"] == "0.3"
    # The KV cache of a CPU is stated in bytes; nothing else there is a share.
    assert "--gpu-memory-utilization" not in cpu
    assert "--kv-cache-memory-bytes" not in gpu and "--enforce-eager" not in gpu
    assert "--tensor-parallel-size" not in cpu and "--enforce-eager" in cpu
    assert "--distributed-executor-backend" not in gpu
    assert cpu["--distributed-executor-backend"].endswith("UniProcExecutor")
    assert (cpu["--load-format"], gpu["--load-format"]) == ("dummy", "auto")
    for given in (cpu, gpu):
        assert (given["--port"], given["--host"], given["--seed"]) == ("8123", "127.0.0.1", "3")
        assert (given["--max-model-len"], given["--max-num-seqs"]) == ("100", "64")
        assert "--no-enable-prefix-caching" in given
        assert given["--max-log-len"] == "10"


def test_the_server_sees_its_devices_only(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-63")
    assert environment(GPU, "k")["CUDA_VISIBLE_DEVICES"] == "2,5"
    cpu = environment(replace(CPU, device_indices=(1, 3)), "k")
    assert (cpu["CUDA_VISIBLE_DEVICES"], cpu["VLLM_CPU_OMP_THREADS_BIND"]) == ("", "1,3")


def test_cores_are_the_profile_s_on_a_cpu_and_given_elsewhere():
    assert replace(CPU, device_indices=(1, 3)).cores == (1, 3)
    assert replace(CPU, device_indices=(1, 3), cpu_indices=(3,)).cores == (3,)
    assert (GPU.cores, replace(GPU, cpu_indices=(4, 6)).cores) == (None, (4, 6))
    fewer = environment(replace(CPU, device_indices=(1, 3), cpu_indices=(3,)), "k")
    assert (fewer["VLLM_CPU_OMP_THREADS_BIND"], fewer["OMP_NUM_THREADS"]) == ("3", "1")


def test_what_the_server_writes_lies_below_its_scratch_folder(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(shared))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for _ in range(2):  # each start of a cell
        values = environment(replace(CPU, scratch=scratch), "k")
    places = ("TMPDIR", "VLLM_CACHE_ROOT", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "VLLM_CONFIG_ROOT")
    caches = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
    for name in (*places, *caches, "FLASHINFER_WORKSPACE_BASE", "VLLM_RPC_BASE_PATH"):
        assert Path(values[name]).is_relative_to(scratch)
    assert Path(values["TMPDIR"]).is_dir()
    # But for what vLLM has found out of models' classes.
    facts = Path(values["VLLM_CACHE_ROOT"]) / "modelinfos"
    assert facts.resolve() == shared / "modelinfos"
    shutil.rmtree(scratch)
    assert (shared / "modelinfos").is_dir()
    assert environment(CPU, "k")["VLLM_CACHE_ROOT"] == str(shared)


def test_servers_share_what_they_compile_where_a_folder_is_given(tmp_path):
    cells = [tmp_path / name for name in ("first", "second")]
    for scratch in cells:
        scratch.mkdir()
        for _ in range(2):  # each start of a cell
            values = environment(replace(CPU, scratch=scratch), "k", str(tmp_path / "all"))
        compiled = Path(values["VLLM_CACHE_ROOT"]) / "torch_compile_cache"
        assert compiled.resolve() == tmp_path / "all"


def test_the_clients_environment_does_not_leak_and_processes_talk_by_loopback(monkeypatch):
    given = {"PYTHONPATH": "/elsewhere", "VIRTUAL_ENV": "/elsewhere", "VLLM_PORT": "29500"}
    for name, value in (given | {"VLLM_HOST_IP": "10.0.0.7"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    values = environment(CPU, "k")
    assert not values.keys() & given.keys()
    assert values["VLLM_HOST_IP"] == values["VLLM_LOOPBACK_IP"] == "127.0.0.1"
    assert values["GLOO_SOCKET_IFNAME"] == values["NCCL_SOCKET_IFNAME"] == "lo"
    assert values["VLLM_NO_USAGE_STATS"] == values["DO_NOT_TRACK"] == "1"
    # Random weights need no download; real ones may.
    assert values["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in environment(GPU, "k")


def test_a_server_that_is_entered_answers_and_one_that_is_left_is_gone(start):
    began_s = time.monotonic()
    with start() as server:
        assert server.is_alive()
        assert 0 < server.start_duration_s < time.monotonic() - began_s
        with urllib.request.urlopen(f"{server.target.base_url}/health", timeout=10) as answer:
            assert answer.status == 200
        processes = descendants(server)
        assert len(processes) >= 2
    assert not server.is_alive()
    assert not any(process.is_running() for process in processes)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{server.target.base_url}/health", timeout=10)


def test_a_server_that_never_gets_healthy(start, monkeypatch):
    monkeypatch.setenv("FAKE_HANG", "1")
    server = start(start_timeout_s=5.0)
    said = r"not healthy within 5 s\. Fix: raise engine\.start_timeout_s"
    with pytest.raises(ServerError, match=said) as caught, server:
        pass
    assert "loading weights, slowly" in str(caught.value)
    assert not caught.value.is_out_of_memory
    assert not server.is_alive()


def test_a_server_whose_log_is_deleted_is_understood_and_ends(start):
    with start() as server:
        server.log_path.write_bytes(b"torch.OutOfMemoryError: CUDA out of memory\n")
        server.log_path.unlink()  # by a second job of the same cell
        assert server.error("it failed").is_out_of_memory
    assert not server.is_alive()


def test_many_servers_at_once_have_ports_keys_and_answers_of_their_own(tmp_path):
    servers = [VLLMServer(GPU, SETTINGS, tmp_path / f"{number}.log") for number in range(8)]
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(stack.enter_context, servers))
        assert len({server.port for server in servers}) == len(servers)
        for server in servers:
            own = [replace(server.target, api_key=other.api_key) for other in servers]
            statuses = [get(target, "/v1/models")[0] for target in own]
            assert statuses == [200 if other is server else 401 for other in servers]


def test_nobody_is_given_a_port_that_is_held_while_its_server_may_listen():
    held = [reserve_port() for _ in range(50)]
    ports = {socket.getsockname()[1] for socket in held}
    assert len(ports) == 50
    for options in ((), (SO_REUSEADDR,), (SO_REUSEPORT,), (SO_REUSEADDR, SO_REUSEPORT)):
        for _ in range(3000):  # of the 28,232 that the kernel gives
            with socket.socket() as other:
                for option in options:
                    other.setsockopt(SOL_SOCKET, option, 1)
                other.bind(("127.0.0.1", 0))
                assert other.getsockname()[1] not in ports
    for each, option in zip(held, (SO_REUSEADDR, SO_REUSEPORT), strict=False):
        with socket.socket() as server, socket.socket() as client:
            server.setsockopt(SOL_SOCKET, option, 1)
            server.bind(each.getsockname())
            server.listen()
            client.connect(each.getsockname())
    for each in held:
        each.close()


def test_a_port_that_somebody_names_and_listens_on_before_the_server(start):
    server = start()
    with socket.socket() as rude:
        rude.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        rude.bind(("127.0.0.1", server.port))
        rude.listen()
        threading.Thread(target=_hang_up, args=(rude,), daemon=True).start()
        with pytest.raises(ServerError, match="address already in use"), server:
            pass
    assert not server.is_alive()


@pytest.mark.parametrize("accepts", ["every key", "another key"])
def test_the_server_of_another_is_not_measured(start, monkeypatch, accepts):
    monkeypatch.setenv("FAKE_HANG", "1")  # ours does not listen yet
    server = start()
    statuses = {"/health": "200 OK", "/v1/models": "200 OK"}
    if accepts == "another key":
        statuses["/v1/models"] = "401 Unauthorized"
    with socket.socket() as other:
        other.setsockopt(SOL_SOCKET, SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", server.port))
        other.listen()
        threading.Thread(target=_answer, args=(other, statuses), daemon=True).start()
        with pytest.raises(ServerError, match=f"another server answers on port {server.port}"):
            server.__enter__()
    assert not server.is_alive()


def _hang_up(listener: socket.socket) -> None:
    while True:
        try:
            listener.accept()[0].close()
        except OSError:
            return


def _answer(listener: socket.socket, statuses: dict[str, str]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            path = connection.recv(4096).decode().split()[1]
            head = f"HTTP/1.1 {statuses[path]}\r\nContent-Length: 0\r\n\r\n"
            connection.sendall(head.encode())


def test_an_interpreter_that_is_missing(start, tmp_path):
    with (
        pytest.raises(InputError, match=r"no interpreter .*/bin/python.*engine\.python"),
        start(python=str(tmp_path / "bin" / "python")),
    ):
        pass


# How it ends when its owner does

OWNER = """
import signal, sys, time
# A shell's background jobs are born deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1]).parent))
from test_vllm_server import GPU, SETTINGS, VLLMServer
with VLLMServer(GPU, SETTINGS, Path(sys.argv[2])) as server:
    print(server.pids[0], flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_its_owner(tmp_path, number):
    tests = Path(__file__).parents[2]
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, __file__, str(tmp_path / "server.log")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(tests)},
        start_new_session=True,
        text=True,
    )
    try:
        keeper = psutil.Process(int(owner.stdout.readline()))
        processes = [keeper, *keeper.children(recursive=True)]
        assert len(processes) >= 2
        os.killpg(owner.pid, number)
        owner.wait(20)
        _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
        assert not alive
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
