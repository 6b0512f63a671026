"""What a server that failed says: whether memory ran out, and how much there was of it."""

import contextlib
import http.client
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fake_servers import CPU, GPU, SETTINGS
from sextant.engine import devices
from sextant.engine.devices import n_oom_kills
from sextant.engine.protocol import ServerError, ServerSpec
from sextant.engine.vllm import VLLMServer


@pytest.fixture
def start(tmp_path):
    """Make servers that log to a temporary folder."""
    return lambda spec=GPU: VLLMServer(spec, SETTINGS, tmp_path / "server.log")


@pytest.fixture
def kernel_counter(tmp_path, monkeypatch):
    """A stand-in for /proc/vmstat that a test may count in."""
    path = tmp_path / "vmstat"
    path.write_text("oom_kill 5\n")
    monkeypatch.setattr(devices, "_VMSTAT", path)
    return path


@pytest.fixture
def crashed(start, monkeypatch):
    """Return the error of a server that ends at its start with a message in its log."""

    def crash(message: str, spec: ServerSpec = GPU) -> ServerError:
        monkeypatch.setenv("FAKE_CRASH", message)
        with pytest.raises(ServerError) as caught, start(spec):
            pass
        return caught.value

    return crash


def complete(server: VLLMServer) -> int:
    """Send a request and return the status of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    head = {"Authorization": f"Bearer {server.api_key}"}
    try:
        body = '{"prompt": [1, 2], "max_tokens": 2}'
        connection.request("POST", "/v1/completions", body, head)
        return connection.getresponse().status
    finally:
        connection.close()


def test_an_error_says_first_where_memory_ran_out_and_then_the_last_lines(crashed):
    after = "\n".join(f"RuntimeError: the engine has ended {number}" for number in range(100))
    error = crashed(f"INFO fine\nE [x.py:1] std::bad_alloc\n{after}")
    assert error.is_out_of_memory
    assert "with status 1: E [x.py:1] std::bad_alloc; last" in str(error)
    shown = [line.rpartition(" ")[2] for line in str(error).splitlines()]
    assert shown[-1] == "99" and "80" in shown and "79" not in shown


@pytest.mark.parametrize(("counted", "is_out_of_memory"), [(5, False), (6, True), (None, True)])
def test_who_is_killed_lacked_no_memory(start, kernel_counter, counted, is_out_of_memory):
    if counted is None:
        kernel_counter.write_text("nr_free_pages 1\n")  # a kernel that does not count
    with start() as server:
        (fake,) = psutil.Process(server.pids[0]).children()
        fake.kill()
        if counted:
            kernel_counter.write_text(f"oom_kill {counted}\n")
        error = server.error("a request failed")
    assert error.is_out_of_memory == is_out_of_memory
    assert "the server was killed (SIGKILL)" in str(error)


def test_the_kernel_counts_what_it_kills_in_a_jobs_memory_cgroup():
    group = Path("/sys/fs/cgroup/memory/sextant-test")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("needs a memory cgroup (v1) of its own")
    try:
        (group / "memory.limit_in_bytes").write_text(str(64 * 2**20))
        before = n_oom_kills()
        script = (
            "import os, sys\n"
            "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
            "taken = b'x' * (256 * 2**20)"
        )
        done = subprocess.run([sys.executable, "-c", script, str(group / "cgroup.procs")])
        assert done.returncode == -signal.SIGKILL
        assert n_oom_kills() > before
    finally:
        group.rmdir()


def test_a_full_scratch_folder_is_named_with_the_fix(crashed, tmp_path):
    spec = replace(GPU, scratch=tmp_path)
    error = crashed("OSError: [Errno 28] No space left on device: '/x/y'", spec)
    assert f"no room in {tmp_path}: set TMPDIR" in str(error) and not error.is_out_of_memory


def test_a_limit_of_memory_makes_it_run_out_for_real(start, monkeypatch):
    monkeypatch.setenv("FAKE_KV_BYTES", str(100_000))
    limited = replace(CPU, memory_limit_gib=0.25, device_indices=(0,))
    # 1,000 tokens take 96 MiB, and 10,000 would take four times the limit.
    with start(limited) as server:
        memory = server.memory()
    assert memory.lacking_bytes is None and memory.profiled_tokens is None
    assert 50 * 2**20 < memory.free_bytes <= memory.idle_free_bytes < 160 * 2**20
    too_much = start(replace(limited, batch_weight_tokens=10_000))
    with pytest.raises(ServerError, match="MemoryError") as caught, too_much:
        pass
    assert caught.value.is_out_of_memory


def test_what_was_lacking_is_what_was_asked_for_less_what_was_left(start, monkeypatch):
    asked = "you tried to allocate 536870912 bytes. Error code 12 (Cannot allocate memory)"
    monkeypatch.setenv("FAKE_CRASH", f"DefaultCPUAllocator: can't allocate memory: {asked}")
    monkeypatch.setenv("FAKE_FAIL_AT", "1")
    with start(replace(CPU, memory_limit_gib=0.25)) as server:
        with contextlib.suppress(http.client.HTTPException, OSError):
            complete(server)
        memory = server.error("a request failed").memory
    assert memory.lacking_bytes == 512 * 2**20 - memory.free_bytes
    assert 200 * 2**20 < memory.free_bytes < 256 * 2**20


@pytest.mark.parametrize(("left_mib", "is_out_of_memory"), [(4, True), (64, False)])
def test_who_ends_at_its_limit_lacked_memory(start, monkeypatch, left_mib, is_out_of_memory):
    monkeypatch.setenv("FAKE_KV_BYTES", str(2**16))
    spec = replace(CPU, memory_limit_gib=0.25)
    with start(spec) as server:
        free_mib = server.memory().free_bytes / 2**20  # 16 tokens, a block, take 1 MiB
    monkeypatch.setenv("FAKE_CRASH", "RuntimeError: can't start new thread")
    monkeypatch.setenv("FAKE_FAIL_AT", "1")
    more_tokens = 16 * round(free_mib - left_mib)
    with start(replace(spec, batch_weight_tokens=1000 + more_tokens)) as server:
        with contextlib.suppress(http.client.HTTPException, OSError):
            complete(server)
        assert server.error("a request failed").is_out_of_memory == is_out_of_memory


def test_what_vllm_has_profiled_counts_without_its_own_block(crashed):
    line = "Overriding num_gpu_blocks=601 with num_gpu_blocks_override=64"
    error = crashed(f"{line}\ntorch.OutOfMemoryError: CUDA out of memory.")
    assert error.memory.profiled_tokens == 600 * 16


@pytest.mark.parametrize(
    ("message", "is_out_of_memory"),
    [("torch.OutOfMemoryError: CUDA out of memory.", True), ("KeyError: 'layer'", False)],
)
def test_an_engine_that_is_dead_behind_a_live_server(start, monkeypatch, message, is_out_of_memory):
    monkeypatch.setenv("FAKE_CRASH", message)
    monkeypatch.setenv("FAKE_FAIL_AT", "1")
    monkeypatch.setenv("FAKE_LIVES_ON", "1")
    with start() as server:
        assert server.is_healthy()
        assert complete(server) == 500
        assert server.is_alive() and not server.is_healthy()
        error = server.error("HTTP 500: EngineDeadError")
    assert error.is_out_of_memory == is_out_of_memory
    assert message in str(error)
