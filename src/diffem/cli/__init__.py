"""The command line, `diffem`."""


def main() -> None:
    """The entry point of the command `diffem`."""
    from .commands import main as run  # here: what `commands.py` registers imports modules of this package

    run()
