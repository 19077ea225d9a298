"""What a commit says about the command that made it."""

from __future__ import annotations

import contextvars
import dataclasses
import json
import threading
from typing import Any

import pytest

from cbmm_spark import __version__
from cbmm_spark.config.schema import Config, SolverConfig
from cbmm_spark.tables import add_provenance, provenance, recorded
from cbmm_spark.tables.provenance import configuration_hash, current_provenance
from cbmm_spark.tables.warehouse import commit_note


class Session:
    """As much of a session as describing jobs needs."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.described: list[str | None] = []

    def setLocalProperty(self, _name: str, value: str | None) -> None:  # noqa: N802
        self.described.append(value)

    def getLocalProperty(self, _name: str) -> str | None:  # noqa: N802
        return self.described[-1] if self.described else None


def note(**own: Any) -> dict[str, Any]:
    told = json.loads(commit_note(own))
    assert isinstance(told, dict)
    return told


def test_outside_of_a_command_a_commit_says_what_it_is_given() -> None:
    assert note(step="x") == {"step": "x"}
    assert commit_note(None) == "{}"


def test_inside_of_a_command_it_says_which_with_which_code_and_configuration() -> None:
    with provenance("ingest", Config(), source="s"):
        add_provenance(ingest_id="i")
        assert note(step="x") == {
            "command": "ingest",
            "config_hash": configuration_hash(Config()),
            "package_version": __version__,
            "source": "s",
            "ingest_id": "i",
            "step": "x",
        }
    assert current_provenance() == {}


def test_a_step_inside_of_a_night_keeps_what_the_night_said() -> None:
    with provenance("nightly", Config(), night_id="n"):
        with provenance("pack", Config()):
            add_provenance(run_id="r")
            assert (note()["command"], note()["night_id"], note()["run_id"]) == ("pack", "n", "r")
        assert note()["command"] == "nightly"
        assert "run_id" not in note()


def test_a_failing_command_leaves_nothing_behind() -> None:
    @recorded("ingest")
    def fails(spark: Any, config: Config) -> None:
        add_provenance(ingest_id="i")
        raise ValueError

    session = Session()
    with pytest.raises(ValueError, match=r"^$"):
        fails(session, config=Config())
    assert current_provenance() == {}
    assert session.described == ["cbmm-spark ingest", None]


def test_the_hash_tells_configurations_apart() -> None:
    other = dataclasses.replace(Config(), solver=SolverConfig(tolerance=1e-5))
    assert configuration_hash(Config()) == configuration_hash(Config()) != configuration_hash(other)
    assert len(configuration_hash(other)) == 16


def test_threads_tell_their_own_story_unless_they_work_for_the_command() -> None:
    told: dict[str, Any] = {}
    with provenance("rescore", Config()):
        alone = threading.Thread(target=lambda: told.update(alone=note()))
        context = contextvars.copy_context()
        working = threading.Thread(target=context.run, args=(lambda: told.update(working=note()),))
        for thread in (alone, working):
            thread.start()
            thread.join()
    assert told["alone"] == {}
    assert told["working"]["command"] == "rescore"
