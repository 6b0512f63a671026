"""What a server's log tells: whether memory ran out, how much was lacking, what was profiled.

The texts are those of vLLM 0.6 to 0.32, PyTorch 1.13 to 2.13, CUDA's libraries, NCCL, glibc and
CPython. Only the text of an error counts: vLLM also speaks of running out of memory when it
gives advice, and names the files and arguments it was given.
"""

import re
from dataclasses import dataclass

_FORMS = (
    # PyTorch and Python: the type of the exception, at the start of a message or after `raise`.
    r"(?:^|[\s.'])(?:OutOfMemoryError|_?ArrayMemoryError|MemoryError)(?:: |\(|'|$)",
    r"\b(?:CUDA|HIP|XPU) out of memory\b",
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
    # CUDA's runtime, driver and libraries.
    r"\bCUDA (?:driver )?[Ee]rror: out of memory|\bcudaMalloc failed: out of memory",
    r"\bcudaErrorMemoryAllocation\b|\bCUDA_ERROR_OUT_OF_MEMORY\b",
    r"\bCU(?:BLAS|DNN|SOLVER|SPARSE|RAND)_STATUS_(?:ALLOC_FAILED|ALLOCATION_FAILED)\b"
    r"|\bCUFFT_ALLOC_FAILED\b",
    r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA (?:host )?(?:c|m)?alloc\b",
    # The host: glibc, the kernel's error ENOMEM, C++.
    r"(?:std::)?bad_alloc\b",
    r"\[Errno 12\]|\bENOMEM\b|Cannot allocate memory",
    r"\b(?:aligned_alloc|memalign|malloc|mmap) failed\b|[Ff]ailed to allocate \d+ bytes",
    r"\b[Uu]nable to (?:allocate|mmap)\b|could not create a memory object",
    r"libgomp: Out of memory|failed to map segment from shared object",
    # vLLM's own checks.
    r"No available memory for the cache blocks",
    r"To serve at least one request with the model(?:'|s)*s max seq len",
    r"is larger than the maximum number of tokens that can be stored in KV cache",
    r"is less than requested memory for kv",
    r"\boom-kill(?:er)?\b|\bOut of memory: Killed process\b",
)
_OUT_OF_MEMORY = re.compile("|".join(f"(?:{form})" for form in _FORMS))
# A process that was killed: what its parent says of it.
_KILLED = re.compile(r"died unexpectedly \(exit code: -9\)|Failed core proc\(s\): \{[^}]*: -9\b")
_DISK_FULL = re.compile(r"\[Errno (?:28|122)\]|No space left on device|Disk quota exceeded")
# Older releases do not tell how a process ended; one that leaves no word was killed.
_DIED = re.compile(r"died unexpectedly(?! \(exit code)")
_LAST_WORDS = re.compile(r"Traceback|Segmentation fault|Segfault|Fatal Python error|SIG[A-Z]{3}")
# Requests, arguments and the configuration are repeated, with whatever their authors wrote.
_QUOTES = re.compile(
    r"Received request|non-default args|Initializing a V\d|prompt_token_ids|HTTP/1"
)

_BYTES = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_AMOUNT = r"([\d.]+) (KiB|MiB|GiB|TiB|bytes)"
_TRIED = re.compile(rf"[Tt]ried to allocate {_AMOUNT}")
_FREE = re.compile(rf"of which {_AMOUNT} is free|; {_AMOUNT} free;")
_NEEDED = re.compile(r"\(?([\d.]+) GiB KV\s+cache is needed.*?cache\s+memory \(([\d.]+) GiB\)")
_PROFILED = re.compile(r"Overriding num_gpu_blocks=(\d+) with num_gpu_blocks_override=(\d+)")


@dataclass(frozen=True)
class Allocation:
    """An allocation that failed."""

    tried_bytes: int
    free_bytes: int | None
    """What the message says was free; None if it does not."""


def out_of_memory_sign(text: str) -> str | None:
    """Return the first line that says that memory ran out, None if none does."""
    return next((line for line in _own_lines(text) if _OUT_OF_MEMORY.search(line)), None)


def killed_sign(text: str) -> str | None:
    """Return the line that says that a process was killed, None if none does."""
    lines = _own_lines(text)
    return next((line for line in lines if _KILLED.search(line)), None) or _silent_death(lines)


def is_disk_full(text: str) -> bool:
    """Return whether a file system had no room for the server."""
    return any(_DISK_FULL.search(line) for line in _own_lines(text))


def _own_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if not _QUOTES.search(line)]


def _silent_death(lines: list[str]) -> str | None:
    """Return the line that says that a process died, if nothing before it says why."""
    for number, line in enumerate(lines):
        if _DIED.search(line):
            before = [each for each in lines[:number] if "WARNING" not in each]
            return None if any(map(_LAST_WORDS.search, before)) else line
    return None


def failed_allocation(text: str) -> Allocation | None:
    """Return the first allocation that failed, with what was asked for and what was free."""
    needed = _NEEDED.search(text)
    if needed:
        return Allocation(*(round(float(part) * 2**30) for part in needed.groups()))
    tried = _TRIED.search(text)
    if not tried:
        return None
    line = text[tried.start() :].split("\n", 1)[0]
    free = _FREE.search(line)
    return Allocation(_bytes(*tried.groups()), _free_bytes(free) if free else None)


def profiled_blocks(text: str) -> int | None:
    """Return the KV blocks that vLLM's profiling would have made, of the worker with the least.

    None where vLLM did not profile: on a CPU it only repeats the number it was given.
    """
    found = [(int(own), int(given)) for own, given in _PROFILED.findall(text)]
    blocks = [own for own, given in found if own != given]
    return min(blocks, default=None)


def _bytes(amount: str, unit: str) -> int:
    return round(float(amount) * _BYTES[unit])


def _free_bytes(match: re.Match) -> int:
    amount, unit = (part for part in match.groups() if part is not None)
    return _bytes(amount, unit)
