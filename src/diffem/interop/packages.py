"""The error for an optional package that is not installed."""


def missing(package: str, error: ModuleNotFoundError) -> ImportError:
    """The error to raise in place of `error`, which may name another package that `package` imports."""
    return ImportError(
        f"diffem.interop.{package} needs {package} ({error}): pip install 'diffem[interop]', or only {package}"
    )
