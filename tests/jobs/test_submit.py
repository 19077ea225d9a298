"""The jobs under spark-submit, as the README shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.jobs.commands import Done, Run


@pytest.mark.slow
def test_the_three_jobs_run_one_after_the_other(submit: Run, tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    config = ("--config", "conf/local.toml")
    simulated = submit("simulate", *config, "--out", str(tmp_path / "h"), "--models", "40", "--items", "120")
    assert simulated.code == 0, simulated.err
    assert simulated.events("simulated")
    ingested = submit(
        "ingest", *config, "--warehouse", str(warehouse), "--input", str(tmp_path / "h" / "history.parquet")
    )
    assert ingested.code == 0, ingested.err
    assert ingested.events("ingested")[0]["accepted"] > 0
    rescored = submit("rescore", *config, "--warehouse", str(warehouse))
    assert rescored.code == 0, rescored.err
    assert rescored.events("iteration")
    assert DeltaTable(str(warehouse / "latest_abilities")).file_uris()


def complaint(done: Done) -> str:
    """The job's own line: spark-submit hands on both streams of a Python program on its standard output."""
    (line,) = done.out.splitlines()
    assert line.startswith("cbmm-spark: ")
    assert "Traceback" not in done.err
    return line


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("spark.sql.extensions=", "spark.sql.extensions does not name io.delta.sql.DeltaSparkSessionExtension"),
        ("spark.jars.packages=", "the Delta JARs are not on Spark's class path"),
    ],
)
def test_a_session_without_delta_is_refused_with_what_to_pass(
    submit: Run, history: Path, tmp_path: Path, option: str, said: str
) -> None:
    done = submit(
        "ingest",
        *("--input", str(history / "history.parquet"), "--warehouse", str(tmp_path / "w")),
        options=("--conf", option),
    )
    assert done.code == 2, done.err
    assert said in complaint(done)
    assert "--properties-file conf/spark-defaults.conf" in complaint(done)
    assert not (tmp_path / "w").exists()


def test_an_input_that_is_missing_is_code_3_through_spark_submit_too(submit: Run, tmp_path: Path) -> None:
    done = submit("ingest", "--input", str(tmp_path / "gone.csv"), "--warehouse", str(tmp_path / "w"))
    assert done.code == 3, done.err
    assert "gone.csv does not exist" in complaint(done)
    assert not (tmp_path / "w").exists()
