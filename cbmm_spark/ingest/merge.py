"""The commit of a batch to `responses`: compare with what is stored, number new keys, write only what differs.

Delta has no unique keys, so two writers are kept apart by its conflict detection: the write is always a MERGE (without
changed rows an insert-only one, which adds files and rewrites none), never a blind append, which Delta would let pass
beside another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import Literal

from delta.exceptions.base import ConcurrentWriteException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.errors import InputError
from cbmm_spark.ingest import numbering as dimensions
from cbmm_spark.ingest.batch import ROWS_A_TASK, Batch, first_key, key_in_words
from cbmm_spark.ingest.rules import HASHED_KEY, KEY
from cbmm_spark.spark.scoped import persisted, session_settings
from cbmm_spark.tables import BENCHMARK_BUCKETS, SPECS, Warehouse, with_commit_retry
from cbmm_spark.tables.warehouse import MICROSECONDS, commit_note

CHANGES = ("new", "corrected", "redated")
"""What is written; `unchanged` and `superseded` rows are not."""

Rule = Literal["latest", "first", "error"]

_CORRECTIONS_SHOWN = 3
_MODELS_BY_NUMBER = 500  # up to so many models the comparison lists their numbers, above it gives a range
_ITEMS_TO_BROADCAST = 1_000_000  # names of items, about 100 bytes each, that an executor surely holds


@dataclass(frozen=True)
class Outcome:
    """What became of the accepted rows: their number by `compare`'s word, and the first few corrections in words."""

    became: Mapping[str, int] = field(default_factory=dict)
    corrections: tuple[str, ...] = ()


def commit_batch(warehouse: Warehouse, batch: Batch, rule: Rule, started: datetime) -> Outcome:
    """Make `responses`, `models` and `items` hold the batch.

    Parameters
    ----------
    warehouse
        Its tables are created if there is something to write.
    batch
        The accepted rows.
    rule
        `ingest.duplicates`.
    started
        The ingest's time, UTC.

    Returns
    -------
    Outcome

    Raises
    ------
    InputError
        A score differs from the stored one and the rule is `error`; nothing is written.
    ConflictError
        Other ingests kept committing first.
    """
    if batch.counts.keys == 0:
        return Outcome()
    # A rival's commit repeats the comparison with what is stored, not the reading of the input.
    commit = _Commit(warehouse, batch, rule, started)
    return with_commit_retry(commit.once, warehouse.location("responses"))


def compare(accepted: DataFrame, stored: DataFrame, rule: Rule) -> DataFrame:
    """What becomes of each accepted row beside the stored one of its hashed key, as column `became`.

    `new`: none is stored. `unchanged`: the same score, and no earlier date. `redated`: the same score with an earlier
    date, or with a date where none was stored; the date is updated. `superseded`: another score that loses to the
    stored one (`latest`: it is dated before it; `first`: it is not dated before it). `corrected`: another score, which
    replaces the stored one.
    """
    old = stored.select(
        *HASHED_KEY,
        F.col("score").alias("old_score"),
        F.col("evaluated_at").alias("old_date"),
        F.lit(True).alias("is_stored"),
    )
    joined = accepted.join(old, list(HASHED_KEY), "left")
    date, old_date = F.col("evaluated_at"), F.col("old_date")
    same = F.col("score").eqNullSafe(F.col("old_score"))
    earlier = F.coalesce(date < old_date, F.lit(False))
    dated_now = date.isNotNull() & old_date.isNull()
    loses = ~earlier if rule == "first" else earlier
    became = (
        F.when(F.col("is_stored").isNull(), "new")
        .when(same & (earlier | dated_now), "redated")
        .when(same, "unchanged")
        .when(loses, "superseded")
        .otherwise("corrected")
    )
    # A correction without a date does not erase the date that is known.
    new_date = F.when(became == "corrected", F.coalesce(date, old_date)).otherwise(date)
    return joined.withColumn("became", became).withColumn("evaluated_at", new_date).drop("old_date", "is_stored")


@contextmanager
def merge_settings(spark: SparkSession, note: Mapping[str, str], *, insert_only: bool) -> Iterator[None]:
    """Settings of a MERGE whose source is persisted and laid out as it should be: no second shuffle or sort, no copy.

    With updates Delta passes over the source twice and insists on a copy of its own
    (DELTA_MERGE_SOURCE_CACHED_DURING_EXECUTION).
    """
    settings = {
        "spark.databricks.delta.commitInfo.userMetadata": commit_note(note),
        "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
        "spark.sql.maxConcurrentOutputFileWriters": str(BENCHMARK_BUCKETS),  # else rows are sorted again
        **MICROSECONDS,
    }
    if insert_only:
        settings["spark.databricks.delta.merge.materializeSource"] = "none"
    with session_settings(spark, settings):
        yield


@dataclass(frozen=True)
class _Numbers:
    """The numbers of a batch's models that had one, ascending, and the last one given to any model before.

    Models that get theirs afterwards have higher ones, whoever gives them.
    """

    known: Sequence[int] = ()
    last: int = 0


@dataclass(frozen=True)
class _Commit:
    warehouse: Warehouse
    batch: Batch
    rule: Rule
    started: datetime
    before: Counter[str] = field(default_factory=Counter)  # rows of commits that a rival made incomplete

    @property
    def note(self) -> dict[str, str]:
        """Said about each commit."""
        return {"command": "ingest", "input": self.batch.path}

    def once(self) -> Outcome:
        """Compare and commit; a conflict with another writer passes to the caller, who tries again."""
        numbers = self._known_models()
        stored = self._stored(numbers.known)
        corrections: tuple[str, ...]
        with ExitStack() as held:
            if stored is None:
                counts, changes, corrections = {"new": self.batch.counts.keys}, self.batch.accepted, ()
            else:
                compared = held.enter_context(persisted(compare(self.batch.accepted, stored, self.rule)))
                rows = compared.groupBy("became").count().collect()  # at most five
                counts = {row["became"]: row["count"] for row in rows}
                changes = compared.where(F.col("became").isin(*CHANGES))
                self._refuse_contradictions(counts, compared)
                corrections = self._corrections(compared) if counts.get("corrected") else ()
            if any(counts.get(change) for change in CHANGES):
                self._write(changes, counts, self._skipping(numbers))
        # What an earlier attempt of this ingest wrote is found unchanged by the last one.
        became = {**Counter(counts) + self.before, "unchanged": counts.get("unchanged", 0) - self.before.total()}
        return Outcome(became, corrections)

    def _known_models(self) -> _Numbers:
        """The numbers of the batch's models that have one."""
        if not self.warehouse.exists("models"):
            return _Numbers()
        mine = F.broadcast(self.batch.names.models.select("model_id", F.lit(True).alias("is_mine")))
        numbered = self.warehouse.read("models").join(mine, "model_id", "left")
        row = numbered.agg(
            F.array_sort(F.collect_list(F.when(F.col("is_mine"), F.col("model_index")))).alias("known"),
            F.coalesce(F.max("model_index"), F.lit(0)).alias("last"),
        ).head()
        assert row is not None
        return _Numbers(row["known"], row["last"])

    def _stored(self, known: Sequence[int]) -> DataFrame | None:
        """The stored rows of models, None if there are none: no model of the batch was ever seen."""
        if not (known and self.warehouse.exists("responses")):
            return None
        index = F.col("model_index")
        is_short = len(known) <= _MODELS_BY_NUMBER
        numbers = index.isin(list(known)) if is_short else index.between(known[0], known[-1])
        # Both conditions skip files: buckets are partitions, and files are written in the order of the models.
        buckets = F.col("benchmark_bucket").isin(list(self.batch.counts.buckets))
        rows = self.warehouse.read("responses").where(numbers & buckets)
        models = self._models().select("model_hash", "model_index")
        items = self._items().select("item_hash", "benchmark", "item_index")
        return rows.join(F.broadcast(models), "model_index").join(self._small(items), ["benchmark", "item_index"])

    def _refuse_contradictions(self, counts: Mapping[str, int], compared: DataFrame) -> None:
        if self.rule != "error" or not (counts.get("corrected") or counts.get("superseded")):
            return
        differing = compared.where(F.col("became").isin("corrected", "superseded"))
        raise InputError(
            f"{self.batch.path} has another score than the stored one for {first_key(differing, self.batch.names)}; "
            "ingest.duplicates = error refuses that"
        )

    def _corrections(self, compared: DataFrame) -> tuple[str, ...]:
        """The first corrections by name; all of them are in the change feed of `responses`."""
        corrected = self.batch.names.named(compared.where(F.col("became") == "corrected"))
        rows = corrected.orderBy(*KEY).limit(_CORRECTIONS_SHOWN).collect()
        return tuple(f"{key_in_words(row)}: {_shown(row['old_score'])} became {_shown(row['score'])}" for row in rows)

    def _write(self, changes: DataFrame, counts: Mapping[str, int], skipping: str) -> None:
        self.warehouse.ensure("responses", "quarantine", "models", "items")
        names = self.batch.names
        content = F.hex("content_low").alias("content_hash")
        items = names.items.select("item_hash", "benchmark", "item_id", content)
        models = _dated(changes, "model_hash").join(names.models, "model_hash")
        dimensions.register(self.warehouse, dimensions.MODELS, models, self.note)
        items = _dated(changes, "item_hash").join(items, "item_hash")
        dimensions.register(self.warehouse, dimensions.ITEMS, items, self.note)
        updates = sum(counts.get(change, 0) for change in ("corrected", "redated"))
        # A night that is small is written by few tasks, for each of them leaves a file for each bucket.
        tasks = -(-sum(counts.get(change, 0) for change in CHANGES) // ROWS_A_TASK)
        rows = self._numbered(changes.coalesce(tasks))
        inserted, updated = self._merge(rows, skipping, with_updates=bool(updates))
        if (inserted, updated) != (counts.get("new", 0), updates):
            # Another ingest committed some of these keys after the comparison. No row is doubled; compare once more.
            self.before.update(new=inserted, corrected=updated)
            raise ConcurrentWriteException("responses changed since they were compared")

    def _models(self) -> DataFrame:
        """The batch's models that have a number: model_hash, model_id, model_index."""
        stored = self.warehouse.read("models").select("model_id", "model_index")
        return stored.join(self.batch.names.models, "model_id")

    def _items(self) -> DataFrame:
        """The batch's items that have a number: item_hash, benchmark, item_id, item_index."""
        stored = self.warehouse.read("items").select("benchmark", "item_id", "item_index")
        names = self.batch.names.items.select("benchmark", "item_id", "item_hash")
        return stored.join(names, ["benchmark", "item_id"])

    def _small(self, items: DataFrame) -> DataFrame:
        return F.broadcast(items) if self.batch.names.n_items <= _ITEMS_TO_BROADCAST else items

    def _numbered(self, changes: DataFrame) -> DataFrame:
        """The rows of `responses`: names and numbers in the place of hashes."""
        return (
            changes.join(F.broadcast(self.batch.names.sources.select("source", "source_hash")), "source_hash")
            .join(F.broadcast(self._models()), "model_hash")
            .join(self._small(self._items()), "item_hash")
            .withColumn("ingested_at", F.lit(self.started).cast("timestamp"))
            .sortWithinPartitions(_place())
        )

    def _skipping(self, numbers: _Numbers) -> str:
        """Which stored rows can be of the batch, for the files to be skipped that hold none."""
        buckets = ", ".join(map(str, self.batch.counts.buckets))
        models = f"t.model_index >= {numbers.known[0] if numbers.known else numbers.last + 1}"
        if len(numbers.known) == self.batch.names.n_models:
            models += f" AND t.model_index <= {numbers.known[-1]}"
        return f"t.benchmark_bucket IN ({buckets}) AND {models}"

    def _merge(self, rows: DataFrame, skipping: str, with_updates: bool) -> tuple[int, int]:
        """Inserted and updated rows of the one commit."""
        key = ("benchmark_bucket", "model_index", "item_index", "attempt", "benchmark")
        same = " AND ".join(f"t.{name} = s.{name}" for name in key)
        merge = self.warehouse.delta("responses").alias("t").merge(rows.alias("s"), f"{skipping} AND {same}")
        if with_updates:
            changed = ("score", "evaluated_at", "source", "ingested_at")
            merge = merge.whenMatchedUpdate(set={name: F.col(f"s.{name}") for name in changed})
        columns = SPECS["responses"].column_names
        merge = merge.whenNotMatchedInsert(values={name: F.col(f"s.{name}") for name in columns})
        with merge_settings(self.warehouse.spark, self.note, insert_only=not with_updates):
            outcome = merge.execute().head()
        assert outcome is not None
        return int(outcome["num_inserted_rows"]), int(outcome["num_updated_rows"])


def _place() -> Column:
    """Where a row lies among those of its task: by bucket, then model, then item.

    As one number, which Spark sorts by its digits instead of comparing columns. Only the layout hangs on it: beyond
    2^27 models or 2^30 items of a benchmark some files would be less well skipped.
    """
    parts = (("benchmark_bucket", 6, 57), ("model_index", 27, 30), ("item_index", 30, 0))
    bits = [F.shiftleft(F.col(name).cast("long").bitwiseAND(F.lit((1 << width) - 1)), at) for name, width, at in parts]
    return reduce(lambda above, below: above.bitwiseOR(below), bits)


def _shown(score: float | None) -> str:
    return "no verdict" if score is None else f"{score:g}"


def _dated(changes: DataFrame, hash_column: str) -> DataFrame:
    """The earliest and the latest date of each hash."""
    dates = (F.min("evaluated_at").alias("first_date"), F.max("evaluated_at").alias("last_date"))
    return changes.groupBy(hash_column).agg(*dates)
