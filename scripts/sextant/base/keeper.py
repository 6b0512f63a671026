"""A process that stops a server and all processes below it when the server's owner ends.

Run as `python keeper.py CPUS LIMIT COMMAND…` with a pipe on standard input. The
pipe closes when the owner exits, is killed with SIGKILL or closes it on purpose; the
keeper then ends the server and every process below it, also those that have daemonized:
as a subreaper (prctl(2)) it inherits them. `CPUS` is a comma-separated list, or `-` for all.
`LIMIT` is the most private writable memory that each of the server's processes may have, in
bytes, or `-` for no limit. It is RLIMIT_DATA (getrlimit(2)): the kernel refuses the allocation
that would exceed it, whereas a limit on the address space would also count what is only mapped.
"""

import contextlib
import ctypes
import functools
import os
import resource
import select
import signal
import subprocess
import sys

import psutil

GRACE_S = 5.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> int:
    """Run the command until it ends or standard input closes; return its exit status."""
    cpus, limit, *command = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # Signals meant for the owner's terminal (Ctrl-C) reach us through the pipe instead.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if cpus != "-":
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    start = functools.partial(_prepare, libc, limit)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=start)
    while server.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], 0.1)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    # End every descendant: SIGTERM, a grace period, then SIGKILL until none is left.
    me = psutil.Process()
    for process in me.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.terminate()
    psutil.wait_procs(me.children(recursive=True), timeout=GRACE_S)
    while below := me.children(recursive=True):
        for process in below:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(below, timeout=1.0)
    return server.returncode if server.returncode is not None else -signal.SIGKILL


def _prepare(libc: ctypes.CDLL, limit: str) -> None:
    if limit != "-":
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = int(limit) if hard == resource.RLIM_INFINITY else min(int(limit), hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # should the keeper itself be killed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) & 0xFF)
