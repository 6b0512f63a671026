"""What a server that failed says: whether memory ran out, and how much there was of it."""

import contextlib
import http.client
from dataclasses import replace

import psutil
import pytest

from fake_servers import CPU, GPU, SETTINGS
from sextant.engine.free_memory import MemoryFacts
from sextant.engine.vllm import Server, ServerError


@pytest.fixture
def start(tmp_path):
    """Make servers that log to a temporary folder."""
    return lambda: Server(GPU, SETTINGS, tmp_path / "server.log")


def complete(server: Server) -> int:
    """Send a request and return the status of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    head = {"Authorization": f"Bearer {server.api_key}"}
    try:
        body = '{"prompt": [1, 2], "max_tokens": 2}'
        connection.request("POST", "/v1/completions", body, head)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_crash_is_no_lack_of_memory(start, monkeypatch):
    monkeypatch.setenv("FAKE_CRASH", "ValueError: unsupported head size 48")
    with pytest.raises(ServerError, match="ended with status 1") as caught, start():
        pass
    assert "unsupported head size 48" in str(caught.value)
    assert not caught.value.is_out_of_memory


@pytest.mark.parametrize(
    "message",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "ValueError: No available memory for the cache blocks.",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate "
        "memory: you tried to allocate 137438953472 bytes.",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_the_ways_to_say_that_memory_ran_out(start, monkeypatch, message):
    monkeypatch.setenv("FAKE_CRASH", message)
    with pytest.raises(ServerError) as caught, start():
        pass
    assert caught.value.is_out_of_memory


def test_the_kernel_ends_a_server_that_takes_too_much(start, monkeypatch):
    monkeypatch.setenv("FAKE_CRASH", "1")
    monkeypatch.setenv("FAKE_KILLED", "1")
    with pytest.raises(ServerError) as caught, start():
        pass
    assert caught.value.is_out_of_memory


def test_an_error_that_is_raised_at_once_waits_for_the_end(start):
    with start() as server:
        (fake,) = psutil.Process(server.pid).children()
        fake.kill()
        error = server.error("a request failed")
    assert error.is_out_of_memory


def test_an_error_shows_the_last_lines_of_the_log(start, monkeypatch):
    monkeypatch.setenv("FAKE_CRASH", "\n".join(f"line {number}" for number in range(100)))
    with pytest.raises(ServerError) as caught, start():
        pass
    shown = str(caught.value).splitlines()
    assert shown[-1] == "line 99" and "line 80" in shown and "line 79" not in shown


def test_an_error_says_first_where_memory_ran_out(start, monkeypatch):
    after = "\n".join(["RuntimeError: the engine has ended"] * 40)
    monkeypatch.setenv("FAKE_CRASH", f"INFO fine\nE [x.py:1] std::bad_alloc\n{after}")
    with pytest.raises(ServerError, match=r"with status 1: E \[x\.py:1\] std::bad_alloc; last"):
        start().__enter__()


def test_a_limit_of_memory_makes_it_run_out_for_real(start, monkeypatch):
    monkeypatch.setenv("FAKE_KV_BYTES", str(100_000))
    limited = replace(CPU, memory_limit_gib=0.25, device_indices=(0,))
    # 1,000 tokens take 96 MiB, and 10,000 would take four times the limit.
    with replace(start(), spec=limited) as server:
        memory = server.memory()
    assert memory.lacking_bytes is None and memory.profiled_tokens is None
    assert 50 * 2**20 < memory.free_bytes <= memory.idle_free_bytes < 160 * 2**20
    too_much = replace(start(), spec=replace(limited, batch_weight_tokens=10_000))
    with pytest.raises(ServerError, match="MemoryError") as caught, too_much:
        pass
    assert caught.value.is_out_of_memory


def test_what_was_lacking_is_what_was_asked_for_less_what_was_left(start, monkeypatch):
    asked = "you tried to allocate 536870912 bytes. Error code 12 (Cannot allocate memory)"
    monkeypatch.setenv("FAKE_CRASH", f"DefaultCPUAllocator: can't allocate memory: {asked}")
    monkeypatch.setenv("FAKE_FAIL_AT", "1")
    with replace(start(), spec=replace(CPU, memory_limit_gib=0.25)) as server:
        with contextlib.suppress(http.client.HTTPException, OSError):
            complete(server)
        memory = server.error("a request failed").memory
    assert memory.lacking_bytes == 512 * 2**20 - memory.free_bytes
    assert 200 * 2**20 < memory.free_bytes < 256 * 2**20


@pytest.mark.parametrize(("left_mib", "is_out_of_memory"), [(4, True), (64, False)])
def test_an_engine_that_ends_at_its_limit_lacked_memory(
    start, monkeypatch, left_mib, is_out_of_memory
):
    monkeypatch.setenv("FAKE_KV_BYTES", str(2**16))
    spec = replace(CPU, memory_limit_gib=0.25)
    with replace(start(), spec=spec) as server:
        free_mib = server.memory().free_bytes / 2**20  # 16 tokens, a block, take 1 MiB
    monkeypatch.setenv("FAKE_CRASH", "RuntimeError: can't start new thread")
    monkeypatch.setenv("FAKE_FAIL_AT", "1")
    more_tokens = 16 * round(free_mib - left_mib)
    with replace(start(), spec=replace(spec, batch_weight_tokens=1000 + more_tokens)) as server:
        with contextlib.suppress(http.client.HTTPException, OSError):
            complete(server)
        assert server.error("a request failed").is_out_of_memory == is_out_of_memory


def test_a_cpu_without_a_limit_tells_nothing_of_memory(start):
    with replace(start(), spec=CPU) as server:
        assert server.memory() == MemoryFacts()


def test_what_vllm_has_profiled_counts_without_its_own_block(start, monkeypatch):
    line = "Overriding num_gpu_blocks=601 with num_gpu_blocks_override=64"
    monkeypatch.setenv("FAKE_CRASH", f"{line}\ntorch.OutOfMemoryError: CUDA out of memory.")
    with pytest.raises(ServerError) as caught, start():
        pass
    assert caught.value.memory.profiled_tokens == 600 * 16


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


def test_what_an_earlier_start_wrote_does_not_count(start, monkeypatch):
    monkeypatch.setenv("FAKE_CRASH", "torch.OutOfMemoryError: CUDA out of memory.")
    with pytest.raises(ServerError), start():
        pass
    monkeypatch.setenv("FAKE_CRASH", "KeyError: 'layer'")
    with pytest.raises(ServerError) as caught, start():
        pass
    assert not caught.value.is_out_of_memory


def test_a_server_that_was_stopped_was_not_killed_by_the_kernel(start, monkeypatch):
    with start() as server:
        (fake,) = psutil.Process(server.pid).children()
        fake.suspend()  # deaf to SIGTERM: the keeper has to kill it
    assert not server.error("stopped").is_out_of_memory


def test_a_request_that_timed_out_is_no_lack_of_memory(start):
    with start() as server:
        assert not server.error("no end within 10 s").is_out_of_memory
