"""The one exception for bad input: what was given, what is needed."""


class InputError(ValueError):
    """Something a caller gave cannot be used; the message names both sides."""
