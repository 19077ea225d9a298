"""The errors a user can meet, each with the exit code that the commands promise."""

from __future__ import annotations

import errno
import os


class CbmmError(Exception):
    """An expected failure: its message is one line that says what to do.

    Parameters
    ----------
    message
        What is wrong and what to do about it, for the person who typed the command.
    """

    exit_code: int = 1


class ConfigError(CbmmError):
    """The configuration, the command line or the environment cannot work."""

    exit_code = 2


class InputError(CbmmError):
    """The data given, or the table expected, is missing or not what it should be."""

    exit_code = 3


class NotConvergedError(CbmmError):
    """The fit did not converge; the last published results stay visible."""

    exit_code = 4


class GateError(CbmmError):
    """A check before publishing failed: nothing is published, the last published results stay visible."""

    exit_code = 4


class ConflictError(CbmmError):
    """Another run holds the tables; trying again later is safe."""

    exit_code = 5


NO_ROOM = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


def is_disk_full(error: BaseException) -> bool:
    """Whether a disk or a quota is full, however deep Spark has wrapped what the system said.

    Parameters
    ----------
    error
        Of Python, or of Spark with what it was caused by in its text.
    """
    seen: BaseException | None = error
    while seen is not None:
        if any(words in str(seen) for words in NO_ROOM):
            return True
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return False
