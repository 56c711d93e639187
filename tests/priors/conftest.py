from ..undrawn import _undrawn  # noqa: F401 (a fixture)
