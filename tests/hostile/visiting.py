"""What a visitor of the app can send: a file to decode, or an HTTP request; errors are printed as by commands."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from diffem.app.guard import Guard, own_names
from diffem.app.upload import UploadReader, decode
from diffem.core.errors import InputError

SHAPE = (8, 8)  # shape of a sample


def upload(path: Path, folder: Path) -> str | None:
    """Upload a file like the page; returns the reason of a rejection, or None. The file must be removed afterwards."""
    folder.mkdir()
    stored = folder / path.name
    shutil.copyfile(path, stored)
    found = UploadReader(folder, lambda data: decode(data, SHAPE)).read(str(stored))
    if stored.exists():
        return None
    folder.rmdir()
    return str(found) if isinstance(found, InputError) else None


def request(path: Path) -> str | None:
    """Send the HTTP request in a JSON file to the page's guard; returns the reason of a rejection, or None."""
    asked = json.loads(path.read_text())
    headers = [(name.encode(), value.encode()) for name, value in asked["headers"]]
    scope = {"type": "http", "scheme": "http", "method": asked["method"], "path": asked["path"], "headers": headers}
    body = [{"type": "http.request", "body": bytes(1 << 20), "more_body": True}] * asked.get("mebibytes", 0)
    messages = [*body, {"type": "http.request", "body": b"", "more_body": False}]
    answers: list[dict[str, Any]] = []

    async def page(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "http.request" and message["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        answers.append(message)

    asyncio.run(Guard(page, own_names("127.0.0.1"))(scope, receive, send))
    status = answers[0]["status"]
    return f"{status}, {answers[1]['body'].decode()}" if status >= 400 else None


def visit(arguments: list[str]) -> int:
    """Run `upload FILE FOLDER` or `request FILE`; returns the exit code."""
    path = Path(arguments[1])
    refused = upload(path, Path(arguments[2])) if arguments[0] == "upload" else request(path)
    if refused is None:
        return 0
    print(f"diffem: {path.name}: {refused}", file=sys.stderr)
    return 2
