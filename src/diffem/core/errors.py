"""Exceptions and warnings: invalid input, files of another run, failed writes, suspicious results."""


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
