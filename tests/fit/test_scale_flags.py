"""Why a scale should be read with care, from fits of one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cbmm_spark.config.schema import RescoreConfig
from cbmm_spark.fit.scale_flags import scale_flags
from cbmm_spark.kernels.alternation import ScaleFit
from cbmm_spark.kernels.in_process import fit_blocks
from cbmm_spark.kernels.model import Penalty
from cbmm_spark.tables.results import SCALE_FLAG_REASONS
from tests.kernels.layouts import blocks_of, drawn


def fitted(shape: tuple[int, int] = (40, 60), **options: Any) -> ScaleFit:
    n, k = drawn(*shape, seed=1)
    return fit_blocks(blocks_of(n, k), {"s": frozenset("b")}, shape[0], **options)["s"]


def reasons(fit: ScaleFit) -> set[str]:
    found = scale_flags("s", fit, RescoreConfig())
    assert all("\n" not in flag.sentence and "'s'" in flag.sentence for flag in found)
    assert {flag.reason for flag in found} <= set(SCALE_FLAG_REASONS)
    return {flag.reason for flag in found}


def test_an_ordinary_scale_has_none() -> None:
    assert reasons(fitted()) == set()


@pytest.mark.parametrize("options", [{"sigma": 1e4}, {"penalty": Penalty(None, 1e3, 0.1)}], ids=str)
def test_a_penalty_that_outweighs_the_data_is_no_signal(options: dict[str, Any]) -> None:
    assert reasons(fitted(**options)) == {"no_signal"}


def test_few_items_and_a_single_model() -> None:
    assert reasons(fitted((40, 5))) >= {"few_items"}
    assert reasons(fitted((1, 60))) == {"single_model"}


def test_bounds_are_those_of_a_fit_without_penalty() -> None:
    fit = fitted(penalty=Penalty(0.0, 0.0, 0.0))
    far = replace(fit, theta=np.where(np.arange(40) == 3, 10.0, fit.theta))
    assert reasons(far) == {"at_bound"}
    assert reasons(replace(far, items={}, items_at_bound=0)) == set(), "the paper's recurrence has no bounds"
