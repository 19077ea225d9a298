"""Commit conflicts: try the commit again a bounded number of times, never the work before it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from delta.exceptions.base import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)

from cbmm_spark.errors import ConflictError

CONFLICTS = (
    DeltaConcurrentModificationException,
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
"""What Delta raises when somebody else committed first; they share no common base class in every version."""

RETRIES = 3
_FIRST_PAUSE_SECONDS = 0.2

_logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")


def with_commit_retry(commit: Callable[[], _Result], what: str = "the table") -> _Result:
    """Run a commit, again after a conflict, at most ``RETRIES`` times more.

    Parameters
    ----------
    commit
        Makes one Delta commit from its current snapshot. It runs again as a whole, so it holds nothing but the write: a
        frame that is dear to compute is persisted by the caller.
    what
        What is written, for the messages.

    Returns
    -------
    object
        What `commit` returned.

    Raises
    ------
    ConflictError
        Others committed first each time.
    """
    for attempt in range(RETRIES + 1):
        try:
            return commit()
        except CONFLICTS as conflict:
            if attempt == RETRIES:
                raise ConflictError(
                    f"another job keeps writing to {what} ({type(conflict).__name__}, tried {RETRIES + 1} times); "
                    "run again when it has finished"
                ) from conflict
            kind = type(conflict).__name__
            _logger.warning("%s: %s, commit tried again (%d of %d)", what, kind, attempt + 1, RETRIES)
            time.sleep(_FIRST_PAUSE_SECONDS * 2**attempt)
    raise AssertionError("unreachable")
