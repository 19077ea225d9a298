"""Texts in pieces: every line is in exactly one of them, whatever the size of pieces, line ends and compression."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cbmm_spark.errors import InputError
from cbmm_spark.readers.listing import list_files
from cbmm_spark.readers.texts import lines_of, pieces


def lines(path: Path, size: int, block: int) -> list[bytes]:
    parts = pieces(list_files(str(path)), size)
    return [found.line(at) for part in parts for found in lines_of(part, block) for at in range(len(found))]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=st.lists(st.sampled_from([b"", b"a", b"bc", "é".encode(), b"x" * 9]), min_size=1, max_size=12),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    ends_so=st.booleans(),
    size=st.integers(1, 20),
    block=st.integers(1, 20),
)
def test_every_line_is_in_one_piece(
    tmp_path: Path, text: list[bytes], end: bytes, ends_so: bool, size: int, block: int
) -> None:
    content = end.join(text) + (end if ends_so else b"")
    if not content:
        return
    (tmp_path / "a.txt").write_bytes(content)
    expected = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    assert lines(tmp_path, size, block) == (expected[:-1] if expected[-1] == b"" else expected)


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2", ".zst", ".xz"])
def test_compressed_texts_and_marks(tmp_path: Path, ending: str) -> None:
    text = b"\xef\xbb\xbf" + "one\nzwei é\n\n".encode() + b"\xff\n" + b"end" * 9
    pack = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress,
            ".zst": lambda content: pa.compress(content, "zstd", asbytes=True)}[ending]  # fmt: skip
    (tmp_path / f"a.txt{ending}").write_bytes(pack(text))
    assert lines(tmp_path, 5, 4) == [b"one", "zwei é".encode(), b"", "\ufffd".encode(), b"end" * 9]


@pytest.mark.parametrize(("name", "content", "told"), [
    ("a.csv.gz", b"model\n", "not gzip"), ("b.csv.gz", gzip.compress(b"model\n" * 99)[:-9], "cut off"),
    ("a.csv", "model".encode("utf-16"), "UTF-16"), ("a.csv.zip", b"PK", "zip, which is not read"),
    ("a.csv.xz", b"model\n", "not xz"), ("a.csv.bz2", b"model\n", "cannot be decompressed"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=told):
        lines(tmp_path, 1 << 20, 1 << 20)
