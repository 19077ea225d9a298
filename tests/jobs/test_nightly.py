"""A night, a look at it and its upkeep as an operator starts them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.jobs.commands import Run

pytestmark = pytest.mark.faults


def test_a_night_is_one_command(console: Run, submit: Run, history: Path, tmp_path: Path) -> None:
    config, warehouse, figures = tmp_path / "night.toml", tmp_path / "warehouse", tmp_path / "cbmm.prom"
    config.write_text(
        f"""
        warehouse = "{warehouse}"
        [nightly]
        metrics_file = "{figures}"
        [[nightly.sources]]
        name = "history"
        input = "{history / "history.parquet"}"
        [[nightly.sources]]
        name = "partner"
        input = "{tmp_path / "drop"}"
        optional = true
        """,
        encoding="utf-8",
    )
    done = console("nightly", "--config", str(config))
    assert (done.code, done.err) == (0, "")
    (night,) = done.events("night")
    assert [step["outcome"] for step in night["steps"]] == ["done"] * 3
    assert [source["outcome"] for source in night["sources"]] == ["read", "missing"]
    assert len(done.events("ingested")) == len(done.events("rescored")) == 1
    text = figures.read_text(encoding="utf-8")
    assert "cbmm_nightly_exit_code 0\n" in text
    assert 'cbmm_run_models{scale="overall"} 60\n' in text
    told = submit("status", "--config", str(config))
    (status,) = told.events("status")
    assert status["nights"][0]["run_id"] == night["run_id"]
    kept = console("maintain", "--config", str(config), "--backup", str(tmp_path / "copy"))
    assert (kept.code, kept.err) == (0, "")
    (line,) = kept.events("maintained")
    copied = DeltaTable(str(tmp_path / "copy" / "abilities")).file_uris()
    rows = sum(pq.read_metadata(uri.removeprefix("file://")).num_rows for uri in copied)
    assert line["backup"]["rows"]["abilities"] == rows == 3 * 60
