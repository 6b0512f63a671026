"""The command `serve`: the library over HTTP, and the page."""

from typing import Annotated

import typer

from sextant.base.errors import InputError
from sextant.cli.printing import say


def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen at; another than this machine needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = 8080,
    token_env: Annotated[
        str | None,
        typer.Option(help="Environment variable with the token that every request has to have."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Questions answered at once; one per CPU by default."),
    ] = None,
    waiting: Annotated[
        int, typer.Option(min=1, max=10_000, help="Questions that may wait; more are refused.")
    ] = 32,
    deadline_s: Annotated[
        float, typer.Option(min=1, help="Seconds after which a question is ended.")
    ] = 300.0,
) -> None:
    """Answer questions in a browser and over HTTP, from what ships; the extra `serve` is needed."""
    try:
        import uvicorn  # noqa: F401
    except ImportError:
        fix = "pip install fastapi uvicorn"
        raise InputError("the extra `serve` is not installed", fix=fix) from None
    from sextant.serve.pool import PoolLimits, available_cpus
    from sextant.serve.server import Address, run_server

    limits = PoolLimits(workers=workers or available_cpus(), waiting=waiting, deadline_s=deadline_s)
    address = Address(host=host, port=port, token_env=token_env)
    say(f"http://{host}:{port} answers questions; Ctrl-C ends it. Schema: /openapi.json", err=True)
    run_server(address, limits)
