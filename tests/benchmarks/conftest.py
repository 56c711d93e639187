from ..undrawn import _reports_undrawn  # noqa: F401 (a fixture)
