"""A reader that polls through many publishes and never sees a mixed or empty state."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from cbmm_spark.runs.publish import publish, start_runs, write_all_results
from cbmm_spark.runs.table import RunKey
from cbmm_spark.tables import Warehouse
from tests.spark.table_samples import DAY, frame, full_row

PUBLISHES, MODELS = 50, 3


def counted(location: str) -> Counter[str]:
    """Rows by run, as delta-rs finds the files: a snapshot independent of the session that writes."""
    files = DeltaTable(location).file_uris()
    return Counter(run_id for uri in files for run_id in pq.ParquetFile(uri).read(["run_id"])["run_id"].to_pylist())


@pytest.mark.faults
def test_a_reader_polling_through_fifty_publishes_sees_whole_nights(warehouse: Warehouse) -> None:
    keys = [RunKey(f"run {i:02d}", DAY + dt.timedelta(days=i)) for i in range(PUBLISHES + 1)]
    start_runs(warehouse, keys, "{}", 1)
    for name, column in (("abilities", "model_id"), ("item_parameters", "item_id")):
        made = [
            full_row(name, run_id=key.run_id, scored_on=key.scored_on, **{column: str(i)})
            for key in keys
            for i in range(MODELS)
        ]
        write_all_results(warehouse, name, frame(warehouse.spark, name, *made), keys)
    publish(warehouse, keys[0].run_id, keys[0].scored_on)
    places = [warehouse.location(name) for name in ("latest_abilities", "latest_item_parameters")]
    seen: list[list[Counter[str]]] = []
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            seen.append([counted(place) for place in places])

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        for key in keys[1:]:
            publish(warehouse, key.run_id, key.scored_on)
    finally:
        done.set()
        reader.join()
    assert all(len(state) == 1 and state.total() == MODELS for pair in seen for state in pair)
    runs = [[int(next(iter(state))[4:]) for state in pair] for pair in seen]
    # Abilities are replaced first; the items, read a moment later, may be one night behind, or further on.
    assert all(items >= abilities - 1 for abilities, items in runs)
    for place in (0, 1):
        assert [pair[place] for pair in runs] == sorted(pair[place] for pair in runs)
    assert len({abilities for abilities, _ in runs}) > PUBLISHES // 2
