"""The exceptions with a message for people: bad input, files of other runs, and storage that does not take what is written to it;
and the warnings."""


class InputError(ValueError):
    """Something a caller gave cannot be used; the message names both sides."""


class ForeignFileError(InputError):
    """A file that is whole but belongs to another run, seed, lap or range of observations."""


class StorageError(OSError):
    """A file could not be written (full disk, read-only folder, quota): what was there before is untouched."""

    def __str__(self) -> str:
        return self.strerror or super().__str__()


class RunWarning(UserWarning):
    """Something is probably wrong with a run or its prior: a measure of a lap is off, or the last lap is worse than an earlier one."""


class CastWarning(UserWarning):
    """Numbers were converted to another precision."""
