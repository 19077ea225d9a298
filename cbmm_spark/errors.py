"""The errors a user can meet, each with the exit code that the commands promise."""

from __future__ import annotations


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
    """A check before publishing failed; the last published results stay visible."""

    exit_code = 4


class ConflictError(CbmmError):
    """Another run holds the tables; trying again later is safe."""

    exit_code = 5
