"""Ids of sheets, which may be almost any text, and the safe file names made of them.

Results, the store and reports hold ids. Folders, files, Snakemake's wildcards, and what schedulers
make of these (job comments, names of logs), hold file names.
"""

import re
import unicodedata
from collections.abc import Collection

MAX_CHARACTERS = 100
MAX_FILE_NAME_CHARACTERS = 120
"""Two names and an ending have to fit into the 255 bytes that file systems allow a file."""

_UNSAFE = re.compile(rb"[^A-Za-z0-9._+-]|\A[.-]")
_PERIODIC = re.compile(r"(.+)\1{19}\Z")
_ENCODED = re.compile(r"(?:~[0-9A-F]{2})+")


def file_name(given_id: str) -> str:
    """Return the name used for an id in paths, shells, patterns and wildcards.

    Letters, digits and `._+-` stay; any other byte of the id's UTF-8 becomes `~` and two
    hexadecimal digits, as does a leading `.` or `-`. No two ids have the same name, and an id
    that is safe is its own.
    """
    return _UNSAFE.sub(lambda match: b"~%02X" % match[0][0], given_id.encode()).decode()


def id_of(name: str) -> str:
    """Return the id of a file name; a name that `file_name` never makes is returned as it is."""
    try:
        given_id = _ENCODED.sub(
            lambda match: bytes.fromhex(match[0].replace("~", "")).decode(), name
        )
        return given_id if file_name(given_id) == name else name
    except UnicodeError:
        return name


def by_file_name(ids: Collection[str]) -> dict[str, str]:
    """Return ids by their file names."""
    return {file_name(given_id): given_id for given_id in ids}


def id_problem(given_id: str) -> str | None:
    """Return what is wrong with a text as an id, None if nothing is."""
    if given_id != given_id.strip():
        return "has white space at its ends"
    for character in given_id:
        # Control characters, line separators, marks that reverse the text: a terminal or a page
        # would show something else.
        if not character.isprintable():
            return f"has the character U+{ord(character):04X}, which is not visible"
    if not given_id or len(given_id) > MAX_CHARACTERS:
        return f"has {len(given_id)} characters, not 1 to {MAX_CHARACTERS}"
    if _PERIODIC.search(file_name(given_id)):
        return "ends in 20 equal pieces, which Snakemake takes for a rule that needs itself"
    n_characters = len(file_name(given_id))
    if n_characters > MAX_FILE_NAME_CHARACTERS:
        return (
            f"has a file name of {n_characters} characters, above {MAX_FILE_NAME_CHARACTERS} "
            "(a character other than A-Z, a-z, 0-9 and ._+- takes 3 to 12)"
        )
    return None


def selectable_problem(given_id: str) -> str | None:
    """Return what keeps an id from lists such as `a,b` and `*`, None if nothing does."""
    if given_id == "*" or "," in given_id:
        return "cannot be selected in benchmarks.tsv, where * means all and , separates"
    return id_problem(given_id)


def comparable(given_id: str) -> str:
    """Return an id without differences of case and of Unicode normal form.

    Readers, and file systems that ignore case, cannot tell ids of the same look apart.
    """
    return unicodedata.normalize("NFC", given_id).casefold()
