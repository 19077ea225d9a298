"""Model blocks: the runs of consecutive model numbers that tiles cover, and how small ones grow together.

Boundaries are given when a block is first packed and kept: those of the stored tiles are the state. New models get a
block of their own. A block that is less than `GROWTH` times as wide as its right neighbour is joined with it, as long
as both fit into `MAX_MODELS`. So widths fall by `GROWTH` from block to block: N models lie in about log2(N) blocks and
N / MAX_MODELS full ones, and a model is rewritten about log2(N / models a night) times in all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_MODELS = 32_768
"""Models of the widest block: two bit planes of 1,024 items by so many models are 8 MB."""

GROWTH = 2
"""A block is at least so many times as wide as the next one, or too wide to be joined with it."""


@dataclass(frozen=True, order=True)
class ModelBlock:
    """The models numbered `start` ... `end`.

    Attributes
    ----------
    start
        model_index of the first model.
    width
        How many models.
    """

    start: int
    width: int

    @property
    def end(self) -> int:
        """model_index of the last model."""
        return self.start + self.width - 1


def cut(models: int, start: int = 1) -> tuple[ModelBlock, ...]:
    """Return blocks of `MAX_MODELS` over the numbers `start` ... `models`, the last one as wide as is left."""
    starts = range(start, models + 1, MAX_MODELS)
    return tuple(ModelBlock(first, min(MAX_MODELS, models - first + 1)) for first in starts)


def extended(stored: Iterable[ModelBlock], models: int) -> tuple[ModelBlock, ...]:
    """Return the stored blocks and new ones for all numbers up to `models` that are in none.

    Numbers between stored blocks are those of a block whose last tile vanished, or never had one.

    Raises
    ------
    ValueError
        Stored blocks overlap.
    """
    blocks: list[ModelBlock] = []
    end = 0
    for block in sorted(stored):
        if block.start <= end:
            raise ValueError(f"model blocks overlap at model {block.start}")
        blocks.extend(cut(block.start - 1, end + 1))
        blocks.append(block)
        end = block.end
    blocks.extend(cut(models, end + 1))
    return tuple(blocks)


def joined(blocks: Iterable[ModelBlock]) -> tuple[ModelBlock, ...]:
    """Join small neighbours; blocks that have been joined stay as they are."""
    stack: list[ModelBlock] = []
    for block in blocks:
        stack.append(block)
        while len(stack) > 1 and _belong_together(stack[-2], stack[-1]):
            last = stack.pop()
            stack[-1] = ModelBlock(stack[-1].start, stack[-1].width + last.width)
    return tuple(stack)


def _belong_together(left: ModelBlock, right: ModelBlock) -> bool:
    return left.width < GROWTH * right.width and left.width + right.width <= MAX_MODELS


__all__ = ["GROWTH", "MAX_MODELS", "ModelBlock", "cut", "extended", "joined"]
