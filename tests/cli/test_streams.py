"""Printing where the output has another encoding, is closed, or is on a full disk."""

import errno
import io
import os
import sys
from pathlib import Path

import pytest

import diffem
from diffem.cli.streams import usable_streams
from diffem.core.errors import StorageError

from ..command import diffem as command


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_characters_that_an_encoding_lacks_are_replaced(monkeypatch, errors):
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii", errors=errors))
    with usable_streams():
        print("χ² ± 1", flush=True)
    assert buffer.getvalue() == b"?? ? 1\n"


def test_closed_streams_discard_what_is_printed(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with usable_streams():
        print("nothing", file=sys.stderr)
        sys.stdout.write("nothing")
    sys.stdout.close()
    sys.stderr.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_output_on_a_full_disk_is_an_error_in_one_line(monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with (
            pytest.raises(StorageError, match="the standard output cannot be written: No space left"),
            usable_streams(),
        ):
            print("something", flush=True)
        full.flush()  # at exit, nothing fails again


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOSPC])
def test_other_errors_of_files_are_left_as_they_are(number):
    """A full disk under another file, too: the standard output is not the cause."""
    with pytest.raises(OSError, match="somewhere") as caught, usable_streams():
        raise OSError(number, os.strerror(number), "somewhere")
    assert not isinstance(caught.value, StorageError)


def test_texts_of_the_package_are_read_as_utf_8():
    """Otherwise they depend on the locale: recipes and pages contain × and ±."""
    root = Path(diffem.__file__).parent
    found = [str(p.relative_to(root)) for p in root.rglob("*.py") if ".read_text()" in p.read_text("utf-8")]
    assert found == ["files/memory.py"]  # numbers of the system
    assert "16×16" in command("recipes").stdout
