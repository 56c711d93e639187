"""What to say when an optional package is not there."""


def missing(package: str, error: ModuleNotFoundError) -> ImportError:
    """The error to raise instead of `error`, which may be about a package that `package` itself needs."""
    return ImportError(
        f"diffem.interop.{package} needs the package {package} ({error}); pip install 'diffem[interop]', or {package} alone"
    )
