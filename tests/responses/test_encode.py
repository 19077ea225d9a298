"""Encoded rows: arrays come back as they were, every name and count is told, and one hash for two names is seen."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.readers.rows import Rows
from cbmm_spark.responses import encode
from cbmm_spark.responses.batch import HashCollisionError, batch_of
from cbmm_spark.responses.encode import (
    ANSWERS,
    ENCODED,
    MEMBERS,
    REFUSED,
    Encoder,
    name_hash,
    pack_numbers,
    pack_scores,
    unpack_numbers,
    unpack_scores,
)
from cbmm_spark.responses.members import Members
from cbmm_spark.responses.rules import NO_DATE, judge


@given(hnp.arrays(np.int64, st.integers(1, 20), elements=st.integers(-(1 << 62), 1 << 62)))
def test_numbers_come_back(values: Any) -> None:
    assert unpack_numbers(pack_numbers(values), values.size).tolist() == values.tolist()
    assert len(pack_numbers(np.full(1000, values[0]))) == 9


@given(st.lists(st.sampled_from([0.0, 1.0, np.nan, 0.5]), min_size=1, max_size=20))
def test_scores_come_back(scores: list[float]) -> None:
    values = np.array(scores)
    np.testing.assert_array_equal(unpack_scores(pack_scores(values), values.size), values)


def rows(models: list[str], items: list[str], sources: list[str] | None = None, **columns: Any) -> Rows:
    n = len(models)

    def texts(name: str, otherwise: Any) -> pa.Array:
        return pa.array(columns.get(name, [otherwise] * n), pa.string())

    return Rows(
        model_id=pa.array(models),
        benchmark=texts("benchmark", "b"),
        item_id=pa.array(items),
        attempt=texts("attempt", "1"),
        score=texts("score", "1"),
        evaluated_at=texts("date", None),
        source=pa.array(sources or ["f"] * n),
        content_hash=texts("content", None),
        raw=lambda numbers: [f"row {number}" for number in numbers.tolist()],
    )


def told(*batches: Rows, salt: int = 0) -> pa.Table:
    encoder = Encoder(salt)
    found = []
    for batch in batches:
        found += list(encoder.add(batch, judge(batch, IngestConfig())))
        found.append(encoder.part_done("f", 0, len(batch)))
    return pa.Table.from_batches([*found, *encoder.finish()], ENCODED)


def summed_up(table: pa.Table) -> pa.Table:
    """As `gather` sums up what tasks told."""
    rest = table.filter(pc.not_equal(table["kind"], MEMBERS))
    rest = rest.filter(pc.not_equal(rest["kind"], REFUSED))
    without = pa.nulls(rest.num_rows, pa.int64())
    is_answers = pc.equal(rest["kind"], ANSWERS)
    rest = rest.set_column(rest.column_names.index("hash"), "hash", pc.if_else(is_answers, without, rest["hash"]))
    keys = ["kind", "benchmark", "name", "hash", "reason"]
    found = rest.group_by(keys).aggregate([("n", "sum"), ("low", "min"), ("high", "max")])
    found = found.rename_columns([*keys, "n", "low", "high"])
    found = found.append_column("bucket", pa.array([3] * found.num_rows, pa.int32()))
    members = table.filter(pc.equal(table["kind"], MEMBERS)).select(["kind", "benchmark", "name", "items", "sources"])
    return pa.concat_tables([found, members], promote_options="default")


def test_a_batch_is_its_names_and_counts() -> None:
    one = rows(["m1", "m1", "m2 "], ["i1", "i2", "i1"], content=["c", "d", "c"])
    other = rows(["m2", "m1"], ["i1", "i9"], ["g", "g"], benchmark=["b", "c"], attempt=["1", "4"], content=["x", None])
    table = told(one, other)
    batch = batch_of("input", summed_up(table))
    assert (batch.read, batch.valid, batch.refused) == (5, 4, 1)
    assert batch.models == ["m1", "m2"]
    assert {name: sorted(items.names) for name, items in batch.items.items()} == {"b": ["i1", "i2"], "c": ["i9"]}
    assert {key: (pair.rows, pair.low, pair.high) for key, pair in batch.pairs.items()} == {
        ("b", "m1"): (2, 1, 1), ("b", "m2"): (1, 1, 1), ("c", "m1"): (1, 4, 4),
    }  # fmt: skip
    assert {name: n for name, (n, _) in batch.sources.items()} == {"f": 3, "g": 2}
    items = batch.items["b"]
    at = list(items.names).index("i1")
    assert {items.low[at], items.high[at]} == {name_hash("c"), name_hash("x")}
    assert batch.members.models == {("f", "b"): {"m1"}, ("g", "b"): {"m2"}, ("g", "c"): {"m1"}}
    assert batch.members.items == {("f", "b"): {"i1", "i2"}, ("g", "b"): {"i1"}, ("g", "c"): {"i9"}}
    refused = table.filter(pc.equal(table["kind"], REFUSED)).to_pylist()
    assert [(row["reason"], row["raw"]) for row in refused] == [("space_around_model", "row 2")]


def test_answers_come_back_whatever_was_mixed() -> None:
    dice = np.random.default_rng(5)
    n = 500
    models = [f"m{code}" for code in dice.integers(4, size=n)]
    items = [f"i{code}" for code in dice.integers(50, size=n)]
    benchmarks = [f"b{code}" for code in dice.integers(3, size=n)]
    scores = dice.choice(["1", "0", "0.25", ""], size=n).tolist()
    given_rows = rows(models, items, benchmark=benchmarks, score=scores)
    table = told(given_rows)
    hashes = {name_hash(f"i{code}"): f"i{code}" for code in range(50)}
    found: Counter[Any] = Counter()
    for row in table.filter(pc.equal(table["kind"], ANSWERS)).to_pylist():
        each = zip(unpack_numbers(row["items"], row["n"]), unpack_scores(row["scores"], row["n"]), strict=True)
        found.update((row["name"], row["benchmark"], hashes[int(item)], str(score)) for item, score in each)
        assert set(unpack_numbers(row["dates"], row["n"])) == {NO_DATE}
    as_float = {"1": "1.0", "0": "0.0", "0.25": "0.25", "": "nan"}
    expected = zip(models, benchmarks, items, (as_float[score] for score in scores), strict=True)
    assert found == Counter(expected)


def test_one_hash_for_two_names_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    made = encode.name_hash
    monkeypatch.setattr(encode, "name_hash", lambda name, salt=0: made(name, salt) % (2 if salt == 0 else 1 << 62))
    for batch in (rows(["m"] * 3, ["i1", "i2", "i3"]), rows(["m"] * 3, ["i"] * 3, ["f", "g", "h"])):
        with pytest.raises(HashCollisionError):
            batch_of("input", summed_up(told(batch)))
    monkeypatch.setattr("cbmm_spark.responses.batch.name_hash", encode.name_hash)
    assert batch_of("input", summed_up(told(batch, salt=1)), 1).read == 3


NAMES = st.dictionaries(
    st.tuples(st.sampled_from("fg"), st.sampled_from("bc")), st.frozensets(st.text(max_size=3), max_size=6), max_size=4
)


@given(NAMES, NAMES)
def test_members_come_back_and_tell_what_is_gone(models: Any, before: Any) -> None:
    members = Members(models, models)
    assert Members.unpacked(members.packed()) == members
    gone = members.lacks(Members(before, {}))
    here = {file for file, _ in models}
    for benchmark in "bc":
        held = {name for (file, b), names in before.items() if b == benchmark and file in here for name in names}
        now = {name for (_, b), names in models.items() if b == benchmark for name in names}
        assert gone.models.get(benchmark, frozenset()) == held - now
    assert not gone.items
