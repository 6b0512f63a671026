"""A port of the loopback interface that no two jobs of a node share."""

import socket


def held_port() -> socket.socket:
    """Return a socket bound to a free port of 127.0.0.1, which reserves the port.

    The kernel gives a bound port to no process that asks for any port (bind(2) to 0, connect(2)).
    A server that names the port can still bind it and listen if it sets SO_REUSEADDR, as vLLM
    does, or SO_REUSEPORT, as vLLM with several API servers does (socket(7)).
    """
    held = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        held.setsockopt(socket.SOL_SOCKET, option, 1)
    held.bind(("127.0.0.1", 0))
    return held
