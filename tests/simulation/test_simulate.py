"""The simulated leaderboard history: what is written, that it is reproducible, and what is refused. No Spark."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from cbmm_spark.config.schema import Config, SimulateConfig
from cbmm_spark.errors import ConfigError
from cbmm_spark.simulation import simulate as module
from cbmm_spark.simulation.simulate import simulate

SMALL = SimulateConfig(models=50, items=320, benchmarks=3, months=6, duplicates=0.02, miskeyed=0.02)


def _config(**changes: object) -> Config:
    return Config(simulate=dataclasses.replace(SMALL, **changes))


def _read(out: Path) -> tuple[pa.Table, pa.Table, pa.Table]:
    return tuple(pq.read_table(out / name) for name in (module.HISTORY, module.TRUTH_ABILITIES, module.TRUTH_ITEMS))


def test_the_default_is_the_leaderboard_of_the_readme(tmp_path):
    report = simulate(Config(), tmp_path / "new" / "folder")
    history, abilities, items = _read(tmp_path / "new" / "folder")
    assert (report.models, report.benchmarks, report.items) == (400, 5, 3000)
    assert report.responses == history.num_rows
    assert report.responses + report.missing == 400 * 3000
    assert report.missing / (400 * 3000) == pytest.approx(0.03, abs=0.001)
    assert history.schema.names == ["model", "benchmark", "item", "correct", "date"]
    assert set(history["correct"].unique().to_pylist()) == {0, 1}
    kinds = {each["values"]: each["counts"] for each in items["kind"].value_counts().to_pylist()}
    assert kinds["uninformative"] == 240
    assert 1 <= kinds["duplicate"] <= 30
    assert 1 <= kinds["miskeyed"] <= 30
    assert pc.sum(abilities["is_perfect"]).as_py() == 2
    assert pc.sum(abilities["is_hopeless"]).as_py() == 2
    start, end = dt.datetime(2025, 5, 1, tzinfo=dt.UTC), dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
    assert start < pc.min(history["date"]).as_py() < pc.max(history["date"]).as_py() < end
    assert pc.max(history["date"]).as_py() - pc.min(history["date"]).as_py() > dt.timedelta(days=500)


def test_history_and_truth_belong_together(tmp_path):
    report = simulate(_config(missing=0.2), tmp_path)
    history, abilities, items = _read(tmp_path)
    keys = history.group_by(["model", "benchmark", "item"]).aggregate([([], "count_all")])
    assert keys.num_rows == history.num_rows == report.responses
    assert len(abilities["model"].unique()) == abilities.num_rows == 50
    assert items.group_by(["benchmark", "item"]).aggregate([]).num_rows == items.num_rows == 320
    assert len(items["benchmark"].unique()) == 3
    assert set(history["model"].unique().to_pylist()) <= set(abilities["model"].to_pylist())
    known = set(zip(items["benchmark"].to_pylist(), items["item"].to_pylist(), strict=True))
    assert set(zip(history["benchmark"].to_pylist(), history["item"].to_pylist(), strict=True)) <= known
    assert "0001" in items["item"].to_pylist()  # leading zeros: an identifier, not a number

    accuracy = history.group_by("model").aggregate([("correct", "mean")]).join(abilities, "model")
    perfect = accuracy.filter(accuracy["is_perfect"])["correct_mean"].to_pylist()
    hopeless = accuracy.filter(accuracy["is_hopeless"])["correct_mean"].to_pylist()
    assert perfect == [1.0, 1.0]
    assert hopeless == [0.0, 0.0]
    assert np.corrcoef(accuracy["correct_mean"], accuracy["ability"])[0, 1] > 0.9

    # A model is run once on each benchmark, in the night or day after its release that belongs to it.
    runs = (
        history.group_by(["model", "benchmark"]).aggregate([("date", "min"), ("date", "max")]).join(abilities, "model")
    )
    assert runs["date_min"].equals(runs["date_max"])
    lags = pc.subtract(runs["date_min"], runs["released_at"]).cast("int64").to_numpy() / 86_400e6
    assert lags.min() > 1
    assert lags.max() < 8
    per_model = runs.group_by("model").aggregate([("date_min", "count_distinct")])["date_min_count_distinct"]
    assert set(per_model.to_pylist()) == {3}

    flat = items.filter(pc.equal(items["kind"], "uninformative"))["discrimination"].to_pylist()
    assert flat
    assert set(flat) == {0.0}


def test_a_duplicate_shows_the_answers_of_its_source(tmp_path):
    simulate(_config(missing=0.1), tmp_path)
    history, _, items = _read(tmp_path)
    answers = {
        (row["benchmark"], row["item"], row["model"]): row["correct"]
        for row in history.select(["benchmark", "item", "model", "correct"]).to_pylist()
    }
    copies = [row for row in items.to_pylist() if row["kind"] == "duplicate"]
    assert copies
    assert all((row["duplicate_of"] is None) == (row["kind"] != "duplicate") for row in items.to_pylist())
    for row in copies:
        mine = {m: y for (b, i, m), y in answers.items() if (b, i) == (row["benchmark"], row["item"])}
        theirs = {m: y for (b, i, m), y in answers.items() if (b, i) == (row["benchmark"], row["duplicate_of"])}
        both = mine.keys() & theirs.keys()
        assert len(both) > 20
        assert all(mine[m] == theirs[m] for m in both)


def test_a_miskeyed_item_is_solved_by_the_weak(tmp_path):
    simulate(_config(missing=0.0, discrimination="uniform", miskeyed=0.1), tmp_path)
    history, abilities, items = _read(tmp_path)
    rows = history.join(abilities.filter(pc.invert(abilities["is_perfect"])), "model", join_type="inner")
    rows = rows.join(items.select(["benchmark", "item", "kind"]), ["benchmark", "item"])
    slopes = {}
    for kind in ("regular", "miskeyed"):
        part = rows.filter(pc.equal(rows["kind"], kind))
        slopes[kind] = np.corrcoef(part["ability"], part["correct"])[0, 1]
    assert slopes["regular"] > 0.15
    assert slopes["miskeyed"] < -0.15


@pytest.mark.parametrize("mechanism", ["mcar", "mar", "mnar"])
def test_benchmarks_not_run_and_missing_responses_have_their_shares(tmp_path, mechanism):
    simulate(_config(models=200, mechanism=mechanism, missing=0.4, not_run=0.2), tmp_path)
    history, _, items = _read(tmp_path)
    run = history.group_by(["model", "benchmark"]).aggregate([([], "count_all")])
    assert run.num_rows == round(0.8 * 200 * 3)
    sizes = dict(zip(*(items["benchmark"].value_counts().field(k).to_pylist() for k in (0, 1)), strict=True))
    offered = sum(sizes[b] for b in run["benchmark"].to_pylist())
    assert 1 - history.num_rows / offered == pytest.approx(0.4, abs=0.015)


def test_the_batches_do_not_show_in_the_rows_and_the_seed_does(tmp_path, monkeypatch):
    simulate(_config(), tmp_path / "a")
    monkeypatch.setattr(module, "_ROWS_PER_BATCH", 1000)
    simulate(_config(), tmp_path / "b")
    simulate(_config(seed=1), tmp_path / "c")
    first, second, third = _read(tmp_path / "a"), _read(tmp_path / "b"), _read(tmp_path / "c")
    assert all(one.equals(two) for one, two in zip(first, second, strict=True))
    assert not first[0].equals(third[0])
    assert pq.read_metadata(tmp_path / "b" / module.HISTORY).num_row_groups == 17
    assert pq.read_metadata(tmp_path / "a" / module.HISTORY).num_row_groups == 1


def test_names_stay_unique_in_a_large_leaderboard(tmp_path):
    report = simulate(_config(models=3000, items=60, benchmarks=30, perfect=0, hopeless=0), tmp_path)
    _, abilities, items = _read(tmp_path)
    assert len(abilities["model"].unique()) == 3000
    assert len(items["benchmark"].unique()) == 30
    assert report.benchmarks == 30


def test_a_rerun_replaces_its_own_files_and_only_those(tmp_path):
    out = tmp_path / "history"
    simulate(_config(), out)
    (out / ".hidden").write_text("stays")
    report = simulate(_config(seed=2), out)
    assert sorted(each.name for each in out.iterdir()) == sorted(
        [".hidden", module.HISTORY, module.TRUTH_ABILITIES, module.TRUTH_ITEMS]
    )
    assert pq.read_metadata(report.history).num_rows == report.responses


@pytest.mark.parametrize("name", ["notes.txt", module.HISTORY])
def test_a_folder_with_anything_else_is_refused_and_left_alone(tmp_path, name):
    pq.write_table(pa.table({"a": [1]}), tmp_path / name)
    before = (tmp_path / name).read_bytes()
    with pytest.raises(ConfigError, match=rf"{name}.*--out"):
        simulate(_config(), tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == before


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="cannot be used"):
            simulate(_config(), out)


def test_a_failure_half_way_leaves_the_earlier_files(tmp_path, monkeypatch):
    simulate(_config(), tmp_path)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}

    def full(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write_history", full)
    with pytest.raises(ConfigError, match="No space left"):
        simulate(_config(seed=2), tmp_path)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_a_kill_between_the_files_never_leaves_a_history_with_another_truth(tmp_path, monkeypatch):
    simulate(_config(), tmp_path)
    rename, renamed = Path.replace, []

    def killed(self: Path, target: Path) -> Path:
        if renamed:
            raise KeyboardInterrupt
        renamed.append(target)
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        simulate(_config(seed=2), tmp_path)
    assert renamed
    assert not (tmp_path / module.HISTORY).exists()
    monkeypatch.undo()
    simulate(_config(seed=2), tmp_path)
    assert (tmp_path / module.HISTORY).exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"items": 2}, "cannot be drawn: 2 items cannot fill 3 benchmarks"),
        ({"models": 5}, r"simulate.perfect \(2\) and simulate.hopeless \(2\)"),
        ({"uninformative": 0.9, "miskeyed": 0.2}, "add up to more than 1"),
        ({"mechanism": "mar", "missing": 0.97}, "anchor"),
        ({"not_run": 0.8}, "leaves models without any"),
        ({"start": "01.05.2025"}, "simulate.start"),
        ({"start": "9999-01-01", "months": 24}, "simulate.start"),
        ({"models": 2, "items": 3, "perfect": 0, "hopeless": 0, "uninformative": 0.0, "missing": 0.999}, "no response"),
    ],
)
def test_what_cannot_be_drawn_is_refused_and_nothing_is_written(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        simulate(_config(**changes), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())
