"""What a server's log tells of memory: real messages, and those that only look like them."""

import pytest

from sextant.engine.vllm_command import (
    failed_allocation,
    is_disk_full,
    killed_sign,
    out_of_memory_sign,
    profiled_blocks,
)

MIB, GIB = 2**20, 2**30
CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 39.39 GiB of which 1.50 GiB is free. Including non-PyTorch memory, this process "
    "has 37.88 GiB memory in use."
)
OLD_CUDA = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.63 GiB (GPU 0; 44.56 GiB "
    "total capacity; 27.91 GiB already allocated; 565.31 MiB free; 27.93 GiB reserved in total)"
)
CPU = (
    "(Worker pid=58) ERROR 11-21 19:31:14 [multiproc_executor.py:1063] RuntimeError: [enforce fail "
    "at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 536870912 bytes. Error code 12 (Cannot allocate memory)"
)
ONE_REQUEST = (
    "ValueError: To serve at least one request with the models's max seq len (32768), (4.00 GiB KV "
    "cache is needed, which is larger than the available KV cache memory (1.50 GiB)."
)


@pytest.mark.parametrize(
    "message",
    [
        CUDA,
        OLD_CUDA,
        CPU,
        ONE_REQUEST,
        ONE_REQUEST.replace("models's", "model's"),
        "OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 MiB')",
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 requests.",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA driver error: out of memory",
        "torch.AcceleratorError: CUDA error: cudaErrorMemoryAllocation",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "vm-0:392:494 [2] enqueue.cc:43 NCCL WARN Cuda failure 2 'out of memory'",
        "NCCL WARN Cuda failure 'out of memory'",
        "NCCL WARN Failed to CUDA calloc 6291456 bytes",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "  what():  std::bad_alloc",
        "MemoryError",
        "(EngineCore pid=9) ERROR 11-21 19:31:14 [core.py:98] MemoryError",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9.1 GiB for an array",
        "OSError: [Errno 12] Cannot allocate memory",
        "RuntimeError: ScratchPadManager: aligned_alloc failed for size 524288",
        "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
        "RuntimeError: could not create a memory object",
        "libgomp: Out of memory allocating 1064 bytes",
        "RuntimeError: unable to mmap 536870912 bytes from file </dev/shm/x>: (12)",
        "ImportError: libfoo.so: failed to map segment from shared object",
        "ValueError: No available memory for the cache blocks. Try increasing",
        "ValueError: Available memory on node 0 (0.50/23.00 GiB) on kv cache allocation is less "
        "than requested memory for kv (2.00 GiB).",
        "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens "
        "that can be stored in KV cache (2048).",
        "[ 12.3] Out of memory: Killed process 5692 (VLLM::Worker)",
    ],
)
def test_memory_ran_out(message):
    log = f"INFO 11-21 19:31:14 [core.py:98] Starting\n{message}\nINFO 11-21 [x.py:1] Stopped"
    assert out_of_memory_sign(log) == message.strip()


@pytest.mark.parametrize(
    "message",
    [
        "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",
        "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}",
        "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
    ],
)
def test_a_process_was_killed_by_whomever(message):
    log = f"INFO 11-21 19:31:14 [core.py:98] Starting\n{message}\nINFO 11-21 [x.py:1] Stopped"
    assert killed_sign(log) == message
    assert out_of_memory_sign(log) is None


def test_a_disk_without_room_is_no_lack_of_memory():
    for message in ("OSError: [Errno 28] No space left on device: '/tmp/x'", "[Errno 122] Disk"):
        assert is_disk_full(f"INFO Starting\n{message}")
        assert out_of_memory_sign(message) is None
    assert not is_disk_full("Received request: prompt: 'No space left on device'")


@pytest.mark.parametrize(
    "message",
    [
        # vLLM gives advice.
        "INFO 03-27 10:29:03 [model_runner.py:1442] If out-of-memory error occurs during cudagraph "
        "capture, consider decreasing `gpu_memory_utilization` or switching to eager mode.",
        "CUDA graphs can take additional 1~3 GiB memory per GPU. If you are running out of memory, "
        "consider decreasing `gpu_memory_utilization` or enforcing eager mode.",
        "If OOM'ed, check the difference of initial free memory between the current run and",
        "Without it, this may require lowering --gpu-memory-utilization to avoid OOM.",
        # Other failures, also of things that are called memory or resources.
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, "
        "Hardware limit: 101376.",
        "ValueError: Free memory on device (3.2/39.4 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 35.5 GiB).",
        "api_server.py: error: unrecognized arguments: --no-such-option",
        "OSError: [Errno 28] No space left on device",
        "ValueError: Model architectures ['Foo'] are not supported for now.",
        "FileNotFoundError: [Errno 2] No such file or directory: '/models/x/config.json'",
        "Worker proc VllmWorker-0 died unexpectedly (exit code: -11), shutting down executor.",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
        # What somebody else wrote.
        "Received request cmpl-1: prompt: 'CUDA out of memory. Tried to allocate 2.00 GiB'",
        "non-default args: {'model': '/models/std::bad_alloc'}",
        "Initializing a V1 LLM engine (v0.11.0) with config: model='/models/MemoryError: '",
        'INFO: 127.0.0.1:5 - "POST /v1/completions?x=std::bad_alloc HTTP/1.1" 404 Not Found',
    ],
)
def test_another_failure(message):
    log = f"INFO Starting\n{message}\nINFO Stopped"
    assert out_of_memory_sign(log) is None and killed_sign(log) is None


def test_an_engine_of_old_that_left_a_word_was_not_killed():
    died = "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client."
    last_words = "Traceback (most recent call last):\n  File x\nKeyError: 'layer'"
    warning = "WARNING 11-21 [base.py:380] Traceback (most recent call last):"
    assert killed_sign(f"an INFO\n{warning}\n{died}\nTraceback of its client") == died
    assert killed_sign(f"{last_words}\n{died}") is None
    assert killed_sign(f"!!!!!!! Segfault encountered !!!!!!!\n{died}") is None


@pytest.mark.parametrize(
    ("message", "tried_bytes", "free_bytes"),
    [
        (CUDA, 2 * GIB, 1.5 * GIB),
        (OLD_CUDA, round(1.63 * GIB), round(565.31 * MIB)),
        (CPU, 512 * MIB, None),
        (ONE_REQUEST, 4 * GIB, 1.5 * GIB),
        (CUDA.replace("1.50 GiB is free", "448.00 KiB is free"), 2 * GIB, 448 * 1024),
    ],
)
def test_what_an_allocation_asked_for_and_what_was_free(message, tried_bytes, free_bytes):
    found = failed_allocation(f"INFO Starting\n{message}\n{CPU}")
    assert found == (tried_bytes, free_bytes)


def test_the_profile_of_the_worker_with_the_least():
    line = "INFO 11-21 [kv_cache_utils.py:2619] Overriding num_gpu_blocks=%d with"
    log = "\n".join(f"{line % n} num_gpu_blocks_override=9000" for n in (5120, 5118))
    assert profiled_blocks(log) == 5118
    # On a CPU vLLM has nothing to profile and repeats what it was given.
    assert profiled_blocks(f"{line % 9000} num_gpu_blocks_override=9000") is None
    assert profiled_blocks("INFO Available KV cache memory: 15.27 GiB") is None
