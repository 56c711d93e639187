"""The page's upload field. A file is decoded once and deleted; the decoded sample stays in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from .folder import remove_empty
from .upload import Upload

KEPT = 64  # decoded uploads in memory; the least recently used one is dropped first


class Incoming:
    """Reads and deletes uploaded files.

    Gradio stores an upload in its folder, and every later request of the page contains its path. The file is read at
    the first request; later requests get the decoded upload for the same path. Gradio also accepts addresses to
    download from, and it does not check paths if the page is mounted in another server. Here a path must lie in the
    folder.

    Args:
        folder: The folder in which Gradio stores uploads; no file outside it is read.
        decode: Turns a file's content into an upload, or raises `InputError`.
    """

    def __init__(self, folder: Path, decode: Callable[[bytes], Upload]) -> None:
        self.folder, self.decode = folder.resolve(), decode
        self._read: OrderedDict[Path, Upload | InputError] = OrderedDict()
        self._lock = threading.Lock()

    def field(self, gr: Any, **options: Any) -> Any:
        """Create the upload field; event handlers receive an `Upload`, an `InputError`, or None without a file."""
        field = gr.File(type="binary", **options)
        # replaced on the object: Gradio writes a stub file next to the source of every subclass of a component
        field.async_move_resource_to_block_cache = self._resolved
        field.preprocess = lambda payload: None if payload is None else self.read(payload.path)
        return field

    def read(self, path: str) -> Upload | InputError:
        """Decode the uploaded file at `path` and delete it."""
        file = self._require_inside(path)
        with self._lock:
            if file.is_file() and not file.is_symlink():
                data = file.read_bytes()
                file.unlink()
                if file.parent != self.folder:
                    remove_empty(file.parent)
                self._read[file] = self._decoded(data)
            elif file not in self._read:
                return InputError("the uploaded file has expired; choose it again")
            self._read.move_to_end(file)
            while len(self._read) > KEPT:
                self._read.popitem(last=False)
            return self._read[file]

    def _decoded(self, data: bytes) -> Upload | InputError:
        try:
            return self.decode(data)
        except InputError as error:
            return error

    async def _resolved(self, path: Any) -> str:
        return str(self._require_inside(path))

    def _require_inside(self, path: Any) -> Path:
        file = Path(str(path)).resolve()
        if self.folder not in file.parents:
            raise ValueError(f"{path} is not an uploaded file")
        return file
