"""Model blocks: every number in one block, boundaries kept, few blocks and few rewrites however many nights."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbmm_spark.packing.model_blocks import GROWTH, MAX_MODELS, ModelBlock, cut, extended, joined


def numbers_are_covered_once(blocks: tuple[ModelBlock, ...], models: int) -> bool:
    ends = [0, *(block.end for block in blocks)]
    return all(b.start == end + 1 for b, end in zip(blocks, ends, strict=False)) and ends[-1] == models


@pytest.mark.parametrize("models", [1, 7, MAX_MODELS, MAX_MODELS + 1, 3 * MAX_MODELS, 100_001])
def test_cut_blocks_are_as_wide_as_they_may(models: int) -> None:
    blocks = cut(models)
    assert numbers_are_covered_once(blocks, models)
    assert [block.width for block in blocks[:-1]] == [MAX_MODELS] * (len(blocks) - 1)
    assert joined(blocks[:-1]) == blocks[:-1]


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=60))
def test_any_nights_leave_few_blocks(nights: list[int]) -> None:
    blocks: tuple[ModelBlock, ...] = ()
    models = 0
    for new in nights:
        models += new
        before, blocks = blocks, joined(extended(blocks, models))
        assert numbers_are_covered_once(blocks, models)
        assert max(block.width for block in blocks) <= MAX_MODELS
        starts = {block.start for block in blocks}
        for old in before:  # a boundary is kept or taken away, never moved
            assert old.start in starts or any(b.start < old.start <= b.end and b.end >= old.end for b in blocks)
        for left, right in itertools.pairwise(blocks):
            assert left.width >= GROWTH * right.width or left.width + right.width > MAX_MODELS
        assert joined(blocks) == blocks
        assert len(blocks) <= 2 * models / MAX_MODELS + math.log2(MAX_MODELS) + 2


def test_ninety_nights_rewrite_each_model_a_few_times() -> None:
    """300 models, then ten more each night: what is written stays a small multiple of what is new."""
    blocks, models, rewritten = cut(300), 300, 0
    for _ in range(90):
        models += 10
        before, blocks = set(blocks), joined(extended(blocks, models))
        rewritten += sum(block.width for block in blocks if block not in before)
    assert len(blocks) <= math.log2(1200 / 10) + 1
    assert rewritten <= (1200 - 300) * math.log2(1200 / 10) + 2 * 1200


@given(st.sets(st.integers(0, 11), min_size=1), st.integers(1, 30))
def test_numbers_of_blocks_that_vanished_get_a_block_again(kept: set[int], width: int) -> None:
    stored = [ModelBlock(1 + i * width, width) for i in sorted(kept)]
    blocks = extended(stored, 12 * width)
    assert set(stored) <= set(blocks)
    assert numbers_are_covered_once(blocks, 12 * width)


def test_blocks_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        extended([ModelBlock(1, 10), ModelBlock(10, 5)], 20)
