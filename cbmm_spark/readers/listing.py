"""The files behind a local path, found without Spark and called as Spark calls them."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cbmm_spark.errors import InputError
from cbmm_spark.locations import AS_IN_A_NAME, hint_on_names

_SIGNS = frozenset("*?[]{}\\")
# What `java.net.URI` leaves as it is in a path, which is how Spark makes the names of files.
_AS_IT_IS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-!.~'()*:@&=+$,;/")


@dataclass(frozen=True)
class File:
    """A file of an input.

    Attributes
    ----------
    path
        Where it is opened; of an object store, its name.
    source
        Its name as it is stored in `responses.source`.
    size
        Bytes.
    folders
        Names of the folders between what the user gave and the file.
    """

    path: str
    source: str
    size: int
    folders: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Listing:
    """The files behind a path.

    Attributes
    ----------
    path
        As the user gave it.
    files
        Sorted by path; those of no bytes are left out.
    hidden, empty
        Paths left out because their name, or that of a folder, begins with a dot or an underscore, or because they
        have no bytes. Of a hidden folder only the folder is named.
    is_delta
        Whether the folder has the log of a Delta table; its files are not listed then.
    fetch
        Gives the bytes of a file that cannot be opened by its path (an object store); None: files are local.
    """

    path: str
    files: tuple[File, ...]
    hidden: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    is_delta: bool = False
    fetch: Callable[[File], bytes] | None = None


def list_files(location: str) -> Listing:
    """List a file, a folder with all its subfolders, or a pattern.

    Parameters
    ----------
    location
        A path or a `file:` URI (not encoded, as Hadoop takes it). What exists by this name is taken literally, whatever
        signs the name has; else it is a pattern of Hadoop: `*`, `?`, `[a-c]`, `[^a]`, `{a,b}`, and a backslash before
        a sign that is meant.

    Raises
    ------
    InputError
        There is nothing there, the pattern cannot be read, or a folder may not be listed.
    """
    if not location.strip():
        raise InputError("no input path given")
    path = os.path.abspath(re.sub(r"^file:(//(?=/))?", "", location))
    try:
        roots = [path] if os.path.lexists(path) else sorted(_matching(location, path))
        if not roots:
            raise InputError(f"{location} does not exist{hint_on_names(location)}")
        files: list[File] = []
        hidden: list[str] = []
        empty: list[str] = []
        for root in roots:
            if os.path.isdir(root) and _has_delta_log(root):
                if len(roots) == 1:
                    return Listing(location, (), is_delta=True)
                raise InputError(f"{location} holds a Delta table among other files: {root}; ingest it by its own path")
            # What a person names is read; what a pattern happens to match is not, if it is hidden.
            if root != path and _is_hidden(os.path.basename(root)):
                hidden.append(root)
                continue
            for at, folders in _walk(root, hidden):
                size = os.stat(at).st_size
                if size:
                    files.append(File(at, uri(at), size, folders))
                else:
                    empty.append(at)
    except PermissionError:
        raise InputError(f"{location} cannot be read: permission denied") from None
    except FileNotFoundError as error:
        raise InputError(f"{location}: {error.filename} is a link to nothing, or was taken away meanwhile") from None
    files.sort(key=lambda file: file.path)
    return Listing(location, tuple(files), tuple(sorted(hidden)), tuple(sorted(empty)))


def uri(path: str) -> str:
    """Return the name that Spark gives to a file on a local disk (`_metadata.file_path`)."""
    return "file:" + "".join(_quoted(path))


def _quoted(path: str) -> Iterator[str]:
    for sign in path:
        if sign in _AS_IT_IS:
            yield sign
        elif ord(sign) < 0x80 or unicodedata.category(sign) in ("Zs", "Zl", "Zp", "Cc"):
            yield from (f"%{byte:02X}" for byte in sign.encode())
        else:
            yield sign


def _is_hidden(name: str) -> bool:
    """Whether Spark passes over a file or folder of this name."""
    if name.startswith(("_metadata", "_common_metadata")):
        return False
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")


def _has_delta_log(folder: str) -> bool:
    log = os.path.join(folder, "_delta_log")
    return os.path.isdir(log) and any(name.endswith(".json") for name in os.listdir(log))


def _walk(root: str, hidden: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The files under a root with the folders between; names of hidden things are put into the list."""
    if not os.path.isdir(root):
        yield root, ()
        return
    waiting: list[tuple[str, tuple[str, ...], frozenset[str]]] = [(root, (), frozenset([os.path.realpath(root)]))]
    while waiting:
        folder, folders, above = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if _is_hidden(entry.name):
                    hidden.append(entry.path)
                elif not entry.is_dir():
                    yield entry.path, folders
                else:
                    real = os.path.realpath(entry.path)
                    if real in above:
                        raise InputError(f"{entry.path} is a link to a folder above it")
                    waiting.append((entry.path, (*folders, entry.name), above | {real}))


# Patterns


def _matching(location: str, path: str) -> set[str]:
    """The paths that fit a pattern."""
    if not _SIGNS.intersection(path):
        return set()
    try:
        choices = list(_expanded(path))
        compiled = [[_Step.of(part) for part in _parts(choice)] for choice in choices]
    except (_BadPatternError, re.error):
        raise InputError(f"{location} is a pattern of file names that cannot be read{AS_IN_A_NAME}") from None
    found: set[str] = set()
    for steps in compiled:
        reached = ["/"]
        for step in steps:
            reached = [deeper for at in reached for deeper in step.below(at)]
        found.update(reached)
    return found


class _BadPatternError(Exception):
    pass


def _parts(pattern: str) -> list[str]:
    return [part for part in pattern.split("/") if part]


def _expanded(pattern: str) -> Iterator[str]:
    """The pattern with each choice of its first group in braces put in, and so on."""
    start = _first(pattern, "{", 0)
    if start < 0:
        yield pattern
        return
    depth, at, begin, choices = 1, start + 1, start + 1, []
    while at < len(pattern) and depth:
        sign = pattern[at]
        if sign == "\\":
            at += 1
        elif sign == "{":
            depth += 1
        elif sign == "}" or (sign == "," and depth == 1):
            depth -= sign == "}"
            if depth == (0 if sign == "}" else 1):
                choices.append(pattern[begin:at])
                begin = at + 1
        at += 1
    if depth:
        raise _BadPatternError
    for choice in choices:
        yield from _expanded(pattern[:start] + choice + pattern[at:])


def _first(pattern: str, sign: str, at: int) -> int:
    """Where a sign is first that has no backslash before it and is in no brackets, or −1."""
    while at < len(pattern):
        if pattern[at] == sign:
            return at
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "[":
            end = pattern.find("]", at + 2)
            at = end if end > 0 else at
        at += 1
    return -1


@dataclass(frozen=True)
class _Step:
    """One part of a pattern: a name, or an expression that names must fit."""

    name: str
    expression: re.Pattern[str] | None

    @classmethod
    def of(cls, part: str) -> _Step:
        plain, expression, is_plain, at = "", "", True, 0
        while at < len(part):
            sign = part[at]
            if sign == "\\":
                at += 1
                if at >= len(part):
                    raise _BadPatternError
                plain, expression = plain + part[at], expression + re.escape(part[at])
            elif sign in "*?":
                expression, is_plain = expression + (".*" if sign == "*" else "."), False
            elif sign == "[":
                at, group = _brackets(part, at)
                expression, is_plain = expression + group, False
            else:
                plain, expression = plain + sign, expression + re.escape(sign)
            at += 1
        return cls(plain, None if is_plain else re.compile(expression, re.DOTALL))

    def below(self, folder: str) -> Iterable[str]:
        if self.expression is None:
            at = os.path.join(folder, self.name)
            return [at] if os.path.lexists(at) else []
        if not os.path.isdir(folder):
            return []
        return [os.path.join(folder, name) for name in os.listdir(folder) if self.expression.fullmatch(name)]


def _brackets(part: str, start: int) -> tuple[int, str]:
    """Where a group in brackets ends, and the expression for it."""
    at = start + 1
    negated = part[at : at + 1] in ("^", "!")
    at += negated
    group = ""
    while at < len(part) and (part[at] != "]" or not group):
        if part[at] == "[":
            raise _BadPatternError
        if part[at] == "\\":
            at += 1
        group += "-" if part[at : at + 1] == "-" and group else re.escape(part[at : at + 1])
        at += 1
    if at >= len(part):
        raise _BadPatternError
    return at, f"[{'^' if negated else ''}{group}]"
