"""Exceptions and warnings: invalid input, files of another run, failed writes, suspicious results."""

import sys
import warnings
from pathlib import Path

PACKAGE = str(Path(__file__).parents[1])


class InputError(ValueError):
    """An argument or file cannot be used. The message states what was given and what is needed."""


class RangeError(InputError, IndexError):
    """An index selects no observation. It is an IndexError too, which ends `for` loops over observations."""


class ForeignFileError(InputError):
    """A valid file that belongs to another run, seed, lap or range of observations."""


class StorageError(OSError):
    """A file could not be written (full disk, read-only folder, quota). Existing files are unchanged."""

    def __str__(self) -> str:
        return self.strerror or super().__str__()


class RunWarning(UserWarning):
    """A run is probably wrong: a metric of a lap is abnormal, or the last lap is worse than an earlier one.

    Also issued for an FID from fewer images than features.
    """


class CastWarning(UserWarning):
    """Observations were converted to float32, and rounding errors are not far below their noise."""


def warn(text: str) -> None:
    """Issue a `RunWarning` at the line of the caller outside this library."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RunWarning, stacklevel=level)
