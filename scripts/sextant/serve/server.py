"""Start the server: its address, its token, its limits."""

import os
from dataclasses import dataclass

import uvicorn

from sextant.base.errors import InputError
from sextant.serve.app import ServerSettings, create_app
from sextant.serve.guard import is_loopback
from sextant.serve.pool import PoolLimits

_MOST_CONNECTIONS = 200
"""Connections at one moment; more are refused (503)."""
_SHORTEST_TOKEN = 16
_MOST_HEADERS = 16 * 2**10


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the server listens, and the environment variable with the token that it asks for."""

    host: str
    port: int
    token_env: str | None

    def token(self) -> str | None:
        """Return the token; None: nobody is asked for one.

        Raises InputError where others than this machine may ask without one, or it is too short.
        """
        if self.token_env is None:
            if not is_loopback(self.host):
                problem = f"anybody who reaches {self.host} could ask"
                fix = "name an environment variable that holds a token, or leave --host out"
                raise InputError(problem, field="--token-env", fix=fix)
            return None
        token = os.environ.get(self.token_env, "")
        if len(token) < _SHORTEST_TOKEN or not token.isascii() or token != token.strip():
            problem = f"the environment variable {self.token_env} holds no token"
            fix = f"set it to {_SHORTEST_TOKEN} letters or more, e.g. of `openssl rand -hex 16`"
            raise InputError(problem, field="--token-env", fix=fix)
        return token


def run_server(address: Address, limits: PoolLimits) -> None:
    """Serve until a signal ends it. Raises InputError: the address is taken, or needs a token."""
    settings = ServerSettings(pool=limits, token=address.token())
    config = uvicorn.Config(
        create_app(settings),
        host=address.host,
        port=address.port,
        http="h11",  # bounds headers
        h11_max_incomplete_event_size=_MOST_HEADERS,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
        lifespan="on",
        ws="none",
        log_level="warning",
        server_header=False,
        proxy_headers=False,
    )
    try:
        listening = config.bind_socket()
    except SystemExit:
        fix = "give another --port, or end what listens there"
        problem = f"{address.host}:{address.port} is not free"
        raise InputError(problem, field="--port", fix=fix) from None
    uvicorn.Server(config).run(sockets=[listening])
