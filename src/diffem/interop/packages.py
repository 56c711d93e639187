"""The error for an optional package that is not installed."""


def missing(package: str, error: ModuleNotFoundError) -> ImportError:
    """Make the error for a missing optional package; `error` may name one of its dependencies instead."""
    return ImportError(
        f"diffem.interop.{package} needs {package} ({error}): pip install 'diffem[interop]', or only {package}"
    )
