"""Several dates in one set of blocks: which columns show the models as they stood at a date.

The blocks of a history have a column for every *state* of a model on a benchmark: a set of its cells that some date
saw. Most models have one state, from the day they were evaluated on; a model whose results came in over several of
the dates has several, each good until the next. A date is a *moment*: of every benchmark it sees the columns that are
alive then, at most one a model, and to a scale of that date a block holds nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cbmm_spark.kernels.cells import Block

I32 = NDArray[np.int32]
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Lives:
    """The columns of one benchmark; arrays of shape (C,).

    Attributes
    ----------
    models
        Position among all models of the model that each column shows.
    first, end
        Number of the first date a column is seen at, and of the first one at which it is not seen any more. Columns of
        one model do not overlap.
    """

    models: I32
    first: I32
    end: I32

    def alive(self, columns: NDArray[np.int64], date: int) -> NDArray[np.int64]:
        """Return the places of those columns, of the ones listed, that are seen at a date."""
        return np.flatnonzero((self.first[columns] <= date) & (date < self.end[columns]))


@dataclass(frozen=True)
class Moment:
    """One date of a history.

    Attributes
    ----------
    lives
        By benchmark; the same object for every moment, so that it is sent to a worker once.
    date
        Number of the date, from 0.
    """

    lives: Mapping[str, Lives]
    date: int

    def of(self, block: Block) -> Block | None:
        """Return a block as a fit of that date alone would have it, None where nobody had answered any of its items.

        Its models are positions among all models, in the order of the columns.
        """
        lives = self.lives.get(block.benchmark)
        if lives is None:
            return None
        places = lives.alive(block.models, self.date)
        if places.size == 0:
            return None
        cells = block.cells if places.size == block.models.size else block.cells.select(places)
        models = lives.models[block.models[places]].astype(np.int64)
        return Block(block.benchmark, cells, models, block.item_start)


def seen_by(block: Block, names: Iterable[Name], moments: Mapping[Name, Moment]) -> Iterator[tuple[Block, list[Name]]]:
    """Yield a block as the dates of some scales see it, each with the scales that see it so.

    Parameters
    ----------
    block
        From the cached blocks.
    names
        Scales that the block's benchmark belongs to.
    moments
        By scale; a scale without one sees the whole block. Scales whose date sees nothing of the block get nothing.
    """
    groups: dict[int | None, list[Name]] = {}
    for name in names:
        moment = moments.get(name)
        groups.setdefault(None if moment is None else moment.date, []).append(name)
    for date, group in groups.items():
        seen = block if date is None else moments[group[0]].of(block)
        if seen is not None:
            yield seen, group
