"""Rows of a source as Arrow columns, and where tasks find them: what readers without Spark give.

A reader of this kind is two things. On the driver it lists the files of its input, looks at a few of them and cuts them
into parts (`Scan`). On any machine it turns one part into `Rows`, with PyArrow and NumPy alone. No value is judged
here: ids are literal text, scores, dates and attempts keep the type they were stored with. `responses.rules` alone
judges them, whether Spark runs it or one process does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

LEFT_OUT = ("other_filter", "other_metric", "no_result")
"""Problems of records that are no responses by the source's own design: counted in the report, not in quarantine.

other_filter
    The same answer read by another filter than the one that counts.
other_metric
    Another measure of an answer that is taken already.
no_result
    A record that carries no answer, such as a header, a log line or a summary.
"""

FIRST_ATTEMPT = 1
"""The attempt of a source that has no column for it."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Some rows of one or several files, n of them, before any value is judged.

    Attributes
    ----------
    model_id, benchmark, item_id
        Texts exactly as stored, as string or dictionary arrays (dictionaries where names repeat: what a name costs then
        follows the distinct names); null where the source has null.
    attempt, score, evaluated_at
        As stored: text (plain or as a dictionary), numbers, booleans, times, dates, or the null type.
    source
        The file of each row, as a string or dictionary array.
    content_hash
        Text that tells one content of an item from another; None where the format has none.
    position
        Number of each row within its file, from 0; None where it is not known.
    problem
        A reason for quarantine that only the reader can see, or one of `base.LEFT_OUT`, or null; None: none at all.
    raw
        Gives the rows with these numbers (0 … n − 1) as JSON. Called for refused rows alone.
    defaults
        By what they say, the rows that a default of the reader was applied to: a flag a row, or True for all.
    next_position
        The position that follows what was read of the part with these rows, lines that are no rows counted: of the last
        rows of a part, what it adds to the positions of the next one. None where positions are not known. Rows may be
        none at all, and only tell this.
    """

    model_id: pa.Array
    benchmark: pa.Array
    item_id: pa.Array
    attempt: pa.Array
    score: pa.Array
    evaluated_at: pa.Array
    source: pa.Array
    content_hash: pa.Array | None = None
    position: npt.NDArray[np.int64] | None = None
    problem: pa.Array | None = None
    raw: Callable[[npt.NDArray[np.int64]], Sequence[str]] | None = None
    defaults: Mapping[str, Flags | bool] = field(default_factory=dict)
    next_position: int | None = None

    def __len__(self) -> int:
        return len(self.model_id)


@dataclass(frozen=True)
class Part:
    """What one call of a reader reads: a file, or a piece of it.

    Attributes
    ----------
    path
        On a disk that every machine has, or a name to show where `content` is given.
    source
        The file's name as it is stored in `responses.source`: the same whatever way it is read.
    first, last
        The piece: bytes first … last − 1 of a text, row groups first … last − 1 of a Parquet file; last = −1: to the
        end. A text's piece has the lines that begin in it.
    n_bytes
        About how much is read, to give tasks equal shares.
    content
        The bytes of the whole file, where the machine that reads cannot open it (an object store).
    number
        Counts the parts of a file from 0; positions of rows are told within the part, and placed afterwards.
    """

    path: str
    source: str
    first: int = 0
    last: int = -1
    n_bytes: int = 0
    content: bytes | None = None
    number: int = 0


@dataclass(frozen=True)
class Scan:
    """An input that is read without Spark's readers.

    Attributes
    ----------
    parts
        What there is to read, in the order of the files' names and of their pieces. Positions are within a part.
    read
        Gives the rows of one part. It is sent to the machines that read: it holds configuration and names, no data.
    notes
        What was decided for the whole input, in sentences for the report.
    first_line
        The line of a file, from 1, on which its row 0 is, where rows are lines.
    """

    parts: Sequence[Part]
    read: Callable[[Part], Iterator[Rows]]
    notes: tuple[str, ...] = ()
    first_line: int | None = None
