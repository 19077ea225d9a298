"""The configuration that `runs` keeps of a run is checked before anything is scored with it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from cbmm_spark.config.schema import Config, SolverConfig
from cbmm_spark.errors import InputError
from cbmm_spark.rescoring.fixed_items import stored_solver


def test_a_stored_configuration_is_read_as_it_was() -> None:
    config = dataclasses.replace(Config(), solver=SolverConfig(sigma=2.0, max_nodes=65))
    assert stored_solver("r", config.as_json()) == config.solver
    assert stored_solver("r", json.dumps({"solver": {"sigma": 2.0, "of_a_later_version": 1}})) == SolverConfig(
        sigma=2.0
    )
    assert stored_solver("r", "{}") == SolverConfig()


@pytest.mark.parametrize(
    "text",
    ['{"solver": {"sigma": "2"}}', '{"solver": {"sigma": -1}}', '{"solver": {"max_nodes": 2.5}}', "[]", "not JSON"],
)
def test_what_cannot_be_a_configuration_is_refused_in_words(text: str) -> None:
    with pytest.raises(InputError, match="run-7"):
        stored_solver("run-7", text)
