"""The one place that reads and writes YAML; configuration merged as Snakemake does."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sextant.base.errors import InputError
from sextant.base.files import atomic_path

_MAX_BYTES = 2**18


class _Loader(yaml.SafeLoader):
    """Refuses aliases: ten lines of them stand for gigabytes; and a key that is there twice."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.YAMLError(f"line {mark.line + 1}: aliases such as *name are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if (other := seen.get(str(key.value))) is not None:
                problem = f"line {line}: the key {key.value!r} is already in line {other}"
                raise yaml.YAMLError(f"{problem}; keep one of them")
            seen[str(key.value)] = line
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file of keys and values.

    Raises InputError if it is anything else, has aliases, or more than 256 KiB.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise yaml.YAMLError(f"it has more than {_MAX_BYTES >> 10} KiB")
        found = _Loader(content.decode()).get_single_data()
    except OSError as error:
        fix = "correct its path"
        raise InputError(f"cannot be read ({error.strerror})", file=path, fix=fix) from None
    # ValueError: no UTF-8, or a date or a number that Python does not have.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = f"not YAML ({' '.join(str(error).split())})"
        raise InputError(problem, file=path, fix="correct the file") from None
    if not isinstance(found, dict | None):
        raise InputError("no keys and values", file=path, fix="write key: value")
    return found or {}


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Write keys and values in the order given; the file appears whole or not at all."""
    with atomic_path(path) as temporary:
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
        temporary.write_text(text, encoding="utf-8")


def yaml_documents(contents: Sequence[Mapping[str, Any]]) -> str:
    """Return documents in one text; what two places share is written in both, not as an alias."""
    return yaml.safe_dump_all(json.loads(json.dumps(contents)), sort_keys=False)


DEFAULT_FILE = "config/config.yaml"
"""The file that the Snakefile names; others are merged into it."""


def read_configuration(folder: Path, config_files: Sequence[Path] = ()) -> dict[str, Any]:
    """Read the Snakefile's configuration in a folder and merge others into it; the last wins."""
    if not (folder / DEFAULT_FILE).is_file():
        fix = "run this in the project's folder"
        raise InputError("there is no such file here", file=DEFAULT_FILE, fix=fix)
    return merged(read_yaml(folder / file) for file in [Path(DEFAULT_FILE), *config_files])


def merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge configurations key by key, also below keys; later ones win."""
    config: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            before = config.get(key)
            if isinstance(value, Mapping) and isinstance(before, Mapping):
                value = merged([before, value])
            config[key] = value
    return config
