"""What a fit reads: the stored blocks, or tiles of the responses up to an earlier day, pinned to versions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.schema import Config
from cbmm_spark.console.listener import Listener
from cbmm_spark.errors import InputError
from cbmm_spark.packing.job import PackReport, n_models, pack, packed_in_memory
from cbmm_spark.tables import Warehouse


@dataclass(frozen=True)
class Inputs:
    """What a fit reads, pinned to versions."""

    tiles: DataFrame
    model_benchmarks: DataFrame
    items: DataFrame
    responses_version: int
    n_models: int
    versions: Mapping[str, int]


@contextmanager
def read_inputs(
    spark: SparkSession,
    warehouse: Warehouse,
    config: Config,
    as_of: dt.date | None,
    listener: Listener,
    packed: PackReport | None = None,
) -> Iterator[Inputs]:
    """Pin what is read: the stored blocks, or for an earlier day tiles of the responses up to it, kept for the block.

    Parameters
    ----------
    spark, warehouse, config
        As everywhere.
    as_of
        The day; None for all responses.
    listener
        Told of what is packed and of what is left out.
    packed
        What was packed just before by the same command, so that it is not looked at again.

    Raises
    ------
    InputError
        There is nothing to fit.
    """
    version = warehouse.version("responses")  # first of all: a warehouse without responses is told so
    versions = {"responses": version}
    if as_of is not None:
        total = n_models(warehouse)
        versions["items"] = warehouse.version("items")
        items = warehouse.read("items", versions["items"])
        responses = warehouse.read("responses", version)
        end = dt.datetime.combine(as_of + dt.timedelta(days=1), dt.time(), dt.UTC)
        late = F.col("evaluated_at").isNotNull() & (F.col("evaluated_at") >= F.lit(end))
        left_out = responses.where(late).count()
        if left_out:
            listener.event("left_out", responses=left_out, reason=f"evaluated after {as_of}")
            with packed_in_memory(responses.where(~late), total, config.pack, version) as (tiles, members):
                if tiles is None:
                    raise InputError(f"no response was evaluated by {as_of}; choose a later --as-of")
                yield Inputs(tiles, members, items, version, total, versions)
            return
    if packed is None:
        packed = pack(spark, warehouse, config)
        listener.event("packed", **vars(packed))
    blocks = warehouse.read("response_blocks", packed.blocks_version)
    members = warehouse.read("model_benchmarks", packed.benchmarks_version)
    # Read after packing, so that an ingest beside this run cannot have packed numbers that are not here.
    versions |= {"responses": packed.responses_version, "items": warehouse.version("items")}
    versions |= {"response_blocks": packed.blocks_version, "model_benchmarks": packed.benchmarks_version}
    items = warehouse.read("items", versions["items"])
    yield Inputs(blocks, members, items, packed.responses_version, n_models(warehouse), versions)
