"""YAML of users and strangers: read within limits, with errors that name the file."""

from pathlib import Path

import pytest

from sextant.base.errors import InputError
from sextant.base.sheets import read_yaml
from support import time_limit

BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
BAD = {
    "aliases": (BOMB, "line 2: aliases such as .name are not allowed"),
    "a merge": ("a: &a {b: 1}\nc:\n  <<: *a\n", "line 3: aliases"),
    "a long file": ("a: " + "x" * 2**18, "it has more than 256 KiB"),
    "a deep one": ("a: " + "[" * 10_000, "line 1: nested in more than 50 levels"),
    "a long number": ("a: " + "9" * 5000, "4300 digits"),
    "no date": ("a: 2001-13-45", "month must be in 1..12"),
    "no UTF-8": ("a: \udcff", "utf-8"),
    "a tag": ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    "a key twice": ("a: 1\nb:\n  c: 1\n  c: 2\n", "line 4: the key 'c' is already in line 3"),
    "a list": ("[a, b]", "no keys and values"),
    "half a list": ("a: [b", "expected"),
    "a tab": (
        "a: 1\nb:\n\tc: 2\n",
        "bad.yaml, line 3: not YAML .*Fix: indent with spaces, not tabs",
    ),
    "a colon": ("a: 1\nb: c: d\n", "bad.yaml, line 2: not YAML .*Fix: correct this line"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_its_name(tmp_path: Path, name: str) -> None:
    text, said = BAD[name]
    path = tmp_path / "bad.yaml"
    path.write_text(text, errors="surrogateescape")
    with time_limit(20), pytest.raises(InputError, match=said) as caught:
        read_yaml(path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 1000


def test_keys_and_values_are_read_and_an_empty_file_has_none(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text("a: {b: [1, 2.5, true, null]}\nc: '*text & more'\n")
    assert read_yaml(path) == {"a": {"b": [1, 2.5, True, None]}, "c": "*text & more"}
    path.write_text("# nothing\n")
    assert read_yaml(path) == {}
    with pytest.raises(InputError, match=r"none.yaml: cannot be read \(No such file"):
        read_yaml(tmp_path / "none.yaml")
