"""Text files in blocks of whole lines, decompressed and decoded, without Spark."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cbmm_spark.errors import InputError
from cbmm_spark.readers.listing import File, Listing
from cbmm_spark.readers.rows import Part

PIECE = 32 << 20
"""Bytes of a text that one part has."""

BLOCK = 8 << 20
"""Bytes of lines that are parsed at a time: what they become is in memory at once."""

_MARK = b"\xef\xbb\xbf"
_OTHER_MARKS = MappingProxyType({b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"})
_REFUSED = MappingProxyType({".zip": "zip", ".7z": "7z", ".rar": "rar", ".tar": "tar", ".tgz": "tar", ".lz4": "lz4"})


def _zstd(file: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd"))


_OPENERS: Mapping[str, Callable[[BinaryIO], BinaryIO]] = MappingProxyType(
    {
        ".gz": lambda file: cast(BinaryIO, gzip.GzipFile(fileobj=file)),
        ".bz2": lambda file: cast(BinaryIO, bz2.BZ2File(file)),
        ".zst": _zstd,
        ".xz": lambda file: cast(BinaryIO, lzma.LZMAFile(file)),  # noqa: SIM115
    }
)

COMPRESSED = tuple(_OPENERS)
"""Endings of names of compressed files."""


def compression(path: str) -> str | None:
    """The ending of a compressed file's name, or None."""
    return next((ending for ending in _OPENERS if path.lower().endswith(ending)), None)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn what goes wrong with a file into an `InputError` about the input."""
    try:
        yield
    except (gzip.BadGzipFile, zlib.error):
        raise InputError(f"{path} holds a file that ends in .gz but is not gzip") from None
    except EOFError:
        raise InputError(f"{path} holds a compressed file that is cut off") from None
    except PermissionError:
        raise InputError(f"{path} cannot be read: permission denied") from None
    except lzma.LZMAError:
        raise InputError(f"{path} holds a file that ends in .xz but is not xz, or is cut off") from None
    except OSError as error:
        told = str(error).lower()
        for marker, ending in (("invalid data stream", ".bz2"), ("zstd", ".zst")):
            if marker in told:
                complaint = f"holds a file that ends in {ending} but cannot be decompressed"
                raise InputError(f"{path} {complaint}") from None
        raise


def opened(file: Part | File, content: bytes | None = None) -> BinaryIO:
    """Open a text, decompressed by its name.

    Raises
    ------
    InputError
        Its compression is none that is read.
    """
    name = file.path.lower()
    for refused, called in _REFUSED.items():
        if name.endswith(refused):
            raise InputError(f"{file.path} is compressed as {called}, which is not read: unpack it")
    given = file.content if isinstance(file, Part) else content
    raw: BinaryIO = io.BytesIO(given) if given is not None else open(file.path, "rb")  # noqa: SIM115
    ending = compression(name)
    return raw if ending is None else _OPENERS[ending](raw)


def beginning(listing: Listing, file: File, most: int) -> bytes:
    """The first bytes of a text without its mark; at most so many, and whole lines unless the first one is longer.

    Raises
    ------
    InputError
        It is no UTF-8.
    """
    content = None if listing.fetch is None else listing.fetch(file)
    with reading(listing.path), opened(file, content) as text:
        head = text.read(most + len(_MARK))
    return _without_mark(head, file.path)


def _without_mark(head: bytes, path: str) -> bytes:
    if head[:2] in _OTHER_MARKS:
        raise InputError(f"{path} is {_OTHER_MARKS[head[:2]]}: write it as UTF-8 (iconv -f UTF-16 -t UTF-8)")
    return head.removeprefix(_MARK)


def pieces(listing: Listing, size: int = PIECE) -> list[Part]:
    """Cut texts into parts: those of plain local files begin at line ends, others are whole."""
    parts: list[Part] = []
    for file in listing.files:
        n = 1
        if compression(file.path) is None and listing.fetch is None:
            n = max(1, -(-file.size // size))
        edges = [file.size * at // n for at in range(n)] + [-1 if n == 1 else file.size]
        for number, (first, last) in enumerate(pairwise(edges)):
            parts.append(Part(file.path, file.source, first, last, file.size // n, number=number))
    return parts


def whole(listing: Listing) -> list[Part]:
    """One part a file."""
    return [Part(file.path, file.source, n_bytes=file.size) for file in listing.files]


@dataclass(frozen=True)
class Lines:
    """Whole lines of a text.

    Attributes
    ----------
    text
        UTF-8. Lone carriage returns, which end lines as well, are replaced by line feeds.
    starts, ends
        Where each line begins and ends, without its line end, one carriage return before it cut off too.
    first
        The number of the first line within the part, from 0.
    """

    text: bytes
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    first: int

    def __len__(self) -> int:
        return len(self.starts)

    def line(self, at: int) -> bytes:
        """The bytes of a line."""
        return self.text[self.starts[at] : self.ends[at]]

    @property
    def is_blank(self) -> npt.NDArray[np.bool_]:
        """Which lines hold nothing but space."""
        short = np.flatnonzero(self.ends - self.starts <= _MAYBE_BLANK)
        blank = np.zeros(len(self), dtype=np.bool_)
        for at in short:
            blank[at] = not self.line(int(at)).strip(b" \t\r\f\v")
        return blank


_MAYBE_BLANK = 64  # bytes: longer lines of spaces alone are parsed, and refused


def lines_of(part: Part, size: int = BLOCK) -> Iterator[Lines]:
    """The lines that begin in a part, some at a time.

    A line belongs to the part where it begins; other parts than the first leave out what comes before their first line
    end.
    """
    first = 0
    with reading(part.path), opened(part) as text:
        for block in _blocks(text, part, size):
            lines = split(decodable(block), first)
            first += len(lines)
            yield lines


def decodable(block: bytes) -> bytes:
    """The same as UTF-8: what cannot be decoded becomes U+FFFD."""
    if block.isascii():
        return block
    try:
        block.decode()
    except UnicodeDecodeError:
        return block.decode(errors="replace").encode()
    return block


def split(text: bytes, first: int = 0) -> Lines:
    """Find the lines of a text."""
    if b"\r" in text:
        text = _lone_returns_replaced(text)
    signs = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero(signs == 10)
    starts = np.concatenate([[0], ends + 1])
    if len(ends) and ends[-1] == len(text) - 1:
        starts = starts[:-1]
    else:
        ends = np.concatenate([ends, [len(text)]])
    before = signs[np.maximum(ends - 1, 0)] if len(signs) else np.zeros(len(ends), np.uint8)
    ends = ends - ((before == 13) & (ends > starts))
    return Lines(text, starts.astype(np.int64), ends.astype(np.int64), first)


def _lone_returns_replaced(text: bytes) -> bytes:
    signs = np.frombuffer(text, dtype=np.uint8).copy()
    returns = np.flatnonzero(signs == 13)
    following = signs[np.minimum(returns + 1, len(signs) - 1)]
    signs[returns[(following != 10) | (returns == len(signs) - 1)]] = 10
    return signs.tobytes()


def _blocks(text: BinaryIO, part: Part, size: int) -> Iterator[bytes]:
    """Bytes of a part in blocks that end where a line does."""
    at = 0
    if part.first:
        # The line that begins at `first` itself is this part's: whether one does is told by the byte before.
        text.seek(part.first - 1)
        at = part.first - 1 + len(_to_line_end(text))
    ends_at = part.last if part.last >= 0 else None
    held: list[bytes] = []
    is_first = part.first == 0
    while ends_at is None or at < ends_at:
        block = text.read(size if ends_at is None else min(size, ends_at - at))
        if not block:
            break
        at += len(block)
        if is_first:
            block, is_first = _without_mark(block, part.path), False
        cut = block.rfind(b"\n") + 1
        if ends_at is not None and at >= ends_at:  # the last line may go on after the part's end
            if not block.endswith(b"\n"):
                block += _to_line_end(text)
            cut = len(block)
        if not cut:
            held.append(block)
            continue
        yield b"".join((*held, block[:cut]))
        held = [block[cut:]] if cut < len(block) else []
    if held:
        yield b"".join(held)


def _to_line_end(text: BinaryIO) -> bytes:
    """Read on to the end of the line."""
    return text.readline()


def quoted(line: str) -> str:
    """A line as the JSON that quarantine keeps of it."""
    return json.dumps({"row": line}, ensure_ascii=False, separators=(",", ":"))


def texts(lines: Lines, numbers: Sequence[int]) -> list[str]:
    """Some lines as text."""
    return [lines.line(at).decode(errors="replace") for at in numbers]
