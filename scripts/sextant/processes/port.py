"""A port of the loopback interface that two jobs on one node never share."""

import socket


def held_port() -> socket.socket:
    """Return a socket bound to a free port of 127.0.0.1; it never listens, only holds the port.

    Whoever asks the kernel for any port (bind(2) to 0, connect(2)) does not get one that is
    bound. A server that names it can bind it beside us and listen if it sets SO_REUSEADDR,
    as vLLM does, or SO_REUSEPORT, as vLLM with several API servers does (socket(7)).
    """
    held = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        held.setsockopt(socket.SOL_SOCKET, option, 1)
    held.bind(("127.0.0.1", 0))
    return held
