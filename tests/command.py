"""The command `sextant`, run in the tests' own process."""

from typer.testing import CliRunner

from sextant.cli.app import app


def sextant(*arguments: object, exit_code: int = 0) -> str:
    """Run a command that ends with this status, or raises; return what it printed."""
    done = CliRunner().invoke(app, [str(part) for part in arguments])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == exit_code, done.output
    return done.stdout
