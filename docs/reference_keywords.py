"""mkdocstrings: the functions of `api` with the keywords that they take, as `help()` shows them."""

import inspect
from importlib import import_module
from typing import Any

import griffe


class Keywords(griffe.Extension):
    """Takes signature and docstring of a function with keywords from the function itself.

    In its source such a function has groups of options for parameters.
    """

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Replace what the source says."""
        if not any(str(decorator.value) == "with_keywords" for decorator in func.decorators):
            return
        function = getattr(import_module(func.module.path), func.name)
        docstring = inspect.getdoc(function) or ""
        func.docstring = griffe.Docstring(docstring, parent=func, parser=griffe.Parser.numpy)
        parameters = inspect.signature(function).parameters.values()
        func.parameters = griffe.Parameters(*map(_parameter, parameters))


def _parameter(parameter: inspect.Parameter) -> griffe.Parameter:
    has_default = parameter.default is not parameter.empty
    return griffe.Parameter(
        parameter.name,
        annotation=inspect.formatannotation(parameter.annotation),
        kind=griffe.ParameterKind(parameter.kind.description),
        default=repr(parameter.default) if has_default else None,
    )
