"""Files behind a path: an existing one is literal, what does not exist is a pattern, nothing is left out untold."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbmm_spark.errors import InputError
from cbmm_spark.readers.listing import list_files, uri

LITERAL = ["my results [v2] {a}", "run 1 (final).csv", "a*b?.csv", "x~$&'\"y", "two\nlines.csv", "back\\slash.csv",
           "[[]"]  # fmt: skip


@pytest.mark.parametrize("name", LITERAL)
def test_an_existing_path_is_literal(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / name).write_text("x")
    for given in (tmp_path / name, tmp_path / name / name, f"file://{tmp_path / name}"):
        assert [file.path for file in list_files(str(given)).files] == [str(tmp_path / name / name)]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [("a?.csv", "a1 a2"), ("a[1-1].csv", "a1"), ("a[^1].csv", "a2"), ("{a1,b1}.csv", "a1 b1"), ("*", "a1 a2 b1 c*"),
     ("{a{1,2},b1}.csv", "a1 a2 b1"), ("c\\*.csv", "c*")],
)  # fmt: skip
def test_what_does_not_exist_is_a_pattern(tmp_path: Path, pattern: str, found: str) -> None:
    for name in ("a1", "a2", "b1", "c*", "_h", ".h"):
        (tmp_path / f"{name}.csv").write_text("x")
    listing = list_files(f"{tmp_path}/{pattern}")
    assert [file.name.removesuffix(".csv") for file in listing.files] == found.split()
    assert len(listing.hidden) == (2 if pattern == "*" else 0)


def test_what_is_left_out_is_kept_by_name(tmp_path: Path) -> None:
    (tmp_path / "_folder").mkdir()
    (tmp_path / "deep" / "model=a b").mkdir(parents=True)
    (tmp_path / "deep" / "model=a b" / "f.csv").write_text("x")
    for name in ("_folder/a.csv", ".crc", "none.csv"):
        (tmp_path / name).write_text("" if name == "none.csv" else "x")
    listing = list_files(str(tmp_path))
    assert [(file.name, file.folders) for file in listing.files] == [("f.csv", ("deep", "model=a b"))]
    assert [Path(path).name for path in listing.hidden] == [".crc", "_folder"]
    assert [Path(path).name for path in listing.empty] == ["none.csv"]


@pytest.mark.parametrize(("given", "told"), [("", "no input path"), ("nowhere.csv", "does not exist"),
                                             ("br[1].csv", "write \\\\ before"), ("br[[]1[]", "pattern of file names"),
                                             ("b{a", "pattern of file names")])  # fmt: skip
def test_what_is_not_there_is_refused(tmp_path: Path, given: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        list_files(f"{tmp_path}/{given}" if given else "")


def test_names_are_encoded_as_java_does() -> None:
    assert uri('/a b%#?[]{}^|"<>\\`é😀\u00a0+;:@') == (
        "file:/a%20b%25%23%3F%5B%5D%7B%7D%5E%7C%22%3C%3E%5C%60é😀%C2%A0+;:@"
    )
