"""What is refused in the texts of all options alike, before they are read."""

import inspect
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from typer.core import TyperCommand

from sextant.base.errors import InputError
from sextant.base.numbers import is_plain


def numbers_of(function: Callable[..., Any]) -> frozenset[str]:
    """Return the parameters of a command that are numbers."""
    parameters = inspect.signature(function, eval_str=True).parameters
    return frozenset(
        name for name, parameter in parameters.items() if _is_number(parameter.annotation)
    )


def _is_number(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        return any(map(_is_number, get_args(kind)))
    return kind in (int, float)


class WrittenCommand(TyperCommand):
    """A command whose options take no empty text, and numbers as people write them."""

    numbers: frozenset[str] = frozenset()
    """Names of the parameters that are numbers."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as typer does. Raises InputError, which names the option."""
        given, _, _ = self.make_parser(ctx).parse_args(args=[*args])
        for parameter in self.get_params(ctx):
            texts = given.get(parameter.name)
            for text in texts if isinstance(texts, list | tuple) else (texts,):
                if isinstance(text, str):
                    option = max(parameter.opts, key=len)
                    _check(text, option, is_number=parameter.name in self.numbers)
        return super().parse_args(ctx, args)


def _check(text: str, option: str, *, is_number: bool) -> None:
    if not text.strip():
        fix = "give a value, or leave it out (an unset variable is empty)"
        raise InputError("it is empty", field=option, fix=fix)
    if is_number and not is_plain(text):
        problem = f"{text!r} is not a number as it is written"
        raise InputError(problem, field=option, fix="give digits 0 to 9, e.g. 10")
