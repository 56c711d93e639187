"""What visitors of the app send: files to decode, and requests that other web pages make in their name."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from .arrays import claim, npy
from .images import png
from .registry import Bomb, hostile, pickled

NO_PICTURE = "not a readable picture; it must be PNG, JPEG, WebP or a .npy array"
SIGNATURES = {
    "png": b"\x89PNG\r\n\x1a\n",
    "jpg": b"\xff\xd8\xff",
    "webp": b"RIFF\x24\x00\x00\x00WEBP",
    "npy": b"\x93NUMPY",
}
EPS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    b"(%pipe%touch EXECUTED) (w) file\nshowpage\n%%EOF\n"
)
DOS_EPS = b"\xc5\xd0\xd3\xc6" + struct.pack("<6I", 30, len(EPS), 0, 0, 0, 0) + b"\xff\xff" + EPS
PDF = b"%PDF-1.7\n1 0 obj<</OpenAction<</S/JavaScript/JS(app.alert(1))>>>>endobj\n%%EOF\n"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script><image href="file:///etc/passwd"/></svg>'
ENTITY = b'<?xml version="1.0"?><!DOCTYPE s [<!ENTITY e SYSTEM "file:///etc/passwd">]><svg>&e;</svg>'
XBM = b"#define x_width 8\n#define x_height 8\nstatic char x_bits[] = {0};\n"


def saved(kind: str, image: Image.Image | None = None, **options: object) -> bytes:
    buffer = io.BytesIO()
    (image or Image.new("RGB", (8, 8))).save(buffer, kind, **options)
    return buffer.getvalue()


def noise(kind: str) -> bytes:
    """A picture that cannot be compressed, always the same."""
    return saved(kind, Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def jpeg(width: int, height: int) -> bytes:
    """A JPEG that claims a size."""
    data = bytearray(saved("JPEG", Image.new("L", (8, 8))))
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def webp(width: int, height: int) -> bytes:
    """A WebP that claims a canvas and contains no pixels."""
    size = b"".join((n - 1).to_bytes(3, "little") for n in (width, height))
    return b"RIFF\x1e\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00" + bytes(4) + size + bytes(8)


def animation(kind: str) -> bytes:
    frames = [Image.new("L", (8, 8), 60 * k) for k in range(3)]
    return saved(kind, frames[0], save_all=True, append_images=frames[1:])


def upload(name: str, words: str, file: str, content: bytes | Callable[[], bytes]) -> None:
    """Register a file that is uploaded under the name `file`."""

    def make(folder: Path) -> Path:
        (folder / file).write_bytes(content if isinstance(content, bytes) else content())
        return folder / file

    hostile("upload", name, words)(make)


HEADER = SIGNATURES["png"] + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))

# Formats that Pillow would open, the first by starting Ghostscript, with the suffixes of other formats.
upload("an EPS", NO_PICTURE, "x.eps", EPS)
upload("an EPS called .png", NO_PICTURE, "x.png", EPS)
upload("an EPS with a DOS header", NO_PICTURE, "x.png", DOS_EPS)
upload("PostScript", NO_PICTURE, "x.ps", b"%!PS\n(EXECUTED) (w) file closefile\nshowpage\n")
upload("a PDF", NO_PICTURE, "x.jpg", PDF)
upload("an SVG", NO_PICTURE, "x.png", SVG)
upload("an SVG that refers to a file", NO_PICTURE, "x.svg", ENTITY)
upload("a page", NO_PICTURE, "x.png", b"<!doctype html><script>fetch('//evil.example')</script>")
upload("a TIFF", NO_PICTURE, "x.tif", lambda: saved("TIFF"))
upload("a TIFF called .webp", NO_PICTURE, "x.webp", lambda: saved("TIFF"))
upload("a BMP", NO_PICTURE, "x.png", lambda: saved("BMP"))
upload("a GIF", NO_PICTURE, "x.gif", lambda: saved("GIF"))
upload("an animated GIF called .jpg", NO_PICTURE, "x.jpg", lambda: animation("GIF"))
upload("a PSD", NO_PICTURE, "x.png", b"8BPS\x00\x01" + bytes(6) + struct.pack(">HIIHH", 3, 8, 8, 8, 3) + bytes(300))
upload("an icon", NO_PICTURE, "x.png", lambda: saved("ICO", Image.new("RGB", (16, 16))))
upload("a PPM", NO_PICTURE, "x.png", lambda: saved("PPM"))
upload("a FITS", NO_PICTURE, "x.png", b"SIMPLE  =                    T".ljust(2880))
upload("an XBM", NO_PICTURE, "x.png", XBM)
upload("a WMF", NO_PICTURE, "x.png", b"\xd7\xcd\xc6\x9a" + bytes(60))
upload("an HDF5", NO_PICTURE, "x.png", b"\x89HDF\r\n\x1a\n" + bytes(200))
upload("an AVIF called .webp", NO_PICTURE, "x.webp", b"\x00\x00\x00\x1cftypavif" + bytes(200))
upload("a WAV, a RIFF like WebP", NO_PICTURE, "x.webp", b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(200))
upload("a zip called .npy", NO_PICTURE, "x.npy", b"PK\x03\x04" + bytes(200))
upload("nothing", "choose a file first", "x.png", b"")
upload("one byte", NO_PICTURE, "x.png", b"\x89")

# Wrong signatures.
for suffix, signature in SIGNATURES.items():
    upload(f"the signature of .{suffix} alone", "read as an", f"alone.{suffix}", signature)
    upload(f"the signature of .{suffix}, then an EPS", "read as an", f"eps.{suffix}", signature + EPS)
upload("a JPEG that goes on as a TIFF", "cannot be read as an image", "x.jpg", lambda: b"\xff\xd8\xff" + saved("TIFF"))
upload("a PNG without pixels", "cannot be read as an image", "x.png", HEADER)
upload("a PNG of no width", "cannot be read as an image", "x.png", lambda: png(0, 8))
upload(
    "a PNG with a wrong checksum",
    "cannot be read as an image",
    "x.png",
    lambda: png(8, 8)[:30] + b"\x00\x00\x00" + png(8, 8)[33:],
)
upload(
    "a PNG whose pixels are damaged",
    "cannot be read as an image",
    "x.png",
    lambda: noise("PNG")[:99] + bytes(900) + noise("PNG")[999:],
)

# Files that expand to a large size.
upload("a PNG of 10^10 pixels", "10000000000 pixels|100000×100000", "x.png", lambda: png(100_000, 100_000))
upload("a PNG of 10^8 pixels", "10000×10000 pixels", "x.png", lambda: png(10_000, 10_000, bytes(10_000 * 10_001)))
upload("a PNG of 2^31 columns", "cannot be read as an image|pixels", "x.png", lambda: png((1 << 31) - 1, 1))
upload("a JPEG of 4·10^9 pixels", "pixels", "x.jpg", lambda: jpeg(65_500, 65_500))
upload("a JPEG of 10^8 pixels", "10000×10000 pixels", "x.jpg", lambda: jpeg(10_000, 10_000))
upload("a WebP of 2^32 pixels", "65536×65535 pixels", "x.webp", lambda: webp(65_536, 65_535))
upload("a WebP of 2^48 pixels", "16777216×16777216 pixels", "x.webp", lambda: webp(1 << 24, 1 << 24))
TEXT = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 27), 9))  # 128 MiB
upload(
    "a PNG with a text that unpacks",
    "cannot be read as an image",
    "x.png",
    lambda: png(8, 8)[:33] + TEXT + png(8, 8)[33:],
)
upload("an animated PNG", "animation of 3 frames", "x.png", lambda: animation("PNG"))
upload("an animated WebP", "animation of 3 frames", "x.webp", lambda: animation("WEBP"))

# Truncated files.
upload("half a PNG", "damaged", "x.png", lambda: noise("PNG")[: len(noise("PNG")) // 2])
upload("half a JPEG", "damaged", "x.jpg", lambda: noise("JPEG")[: len(noise("JPEG")) // 2])
upload("half a WebP", "damaged", "x.webp", lambda: noise("WEBP")[: len(noise("WEBP")) // 2])


# Arrays.
@hostile("upload", "a .npy of objects", "objects are never read")
def _(folder):
    np.save(folder / "x.npy", np.array([Bomb(folder / "EXECUTED")], dtype=object), allow_pickle=True)
    return folder / "x.npy"


@hostile("upload", "a pickle called .npy", NO_PICTURE)
def _(folder):
    (folder / "x.npy").write_bytes(pickled(folder))
    return folder / "x.npy"


@hostile("upload", "a pickle behind an array's signature", "cannot be read as an array")
def _(folder):
    (folder / "x.npy").write_bytes(SIGNATURES["npy"] + b"\x01\x00" + pickled(folder))
    return folder / "x.npy"


@hostile("upload", "a .npy header that calls a function", "cannot be read as an array")
def _(folder):
    return npy(folder / "x.npy", f"__import__('os').mkdir('{folder}/EXECUTED')")


@hostile("upload", "a .npy that claims 1 PiB", "the file holds")
def _(folder):
    return npy(folder / "x.npy", claim(f"({1 << 48},)"), bytes(16))


@hostile("upload", "a .npy of another shape", r"of shape \(8, 8\), got float32 of shape \(8, 9\)")
def _(folder):
    np.save(folder / "x.npy", np.zeros((8, 9), np.float32))
    return folder / "x.npy"


@hostile("upload", "a .npy of texts", "not numbers")
def _(folder):
    np.save(folder / "x.npy", np.full((8, 8), "x"))
    return folder / "x.npy"


@hostile("upload", "a .npy of complex numbers", "array of real numbers")
def _(folder):
    np.save(folder / "x.npy", np.zeros((8, 8), np.complex64))
    return folder / "x.npy"


@hostile("upload", "a .npy of infinities", "not finite")
def _(folder):
    np.save(folder / "x.npy", np.full((8, 8), np.inf))
    return folder / "x.npy"


@hostile("upload", "a .npy that overflows", "not finite")
def _(folder):
    np.save(folder / "x.npy", np.full((8, 8), 1e300))
    return folder / "x.npy"


# Requests. HOST is the address of the page.
HOST = "127.0.0.1:7860"
API = "/gradio_api/"


def request(
    name: str,
    words: str,
    *headers: tuple[str, str],
    method: str = "POST",
    path: str = "upload",
    host: str | None = HOST,
    mebibytes: int = 0,
) -> None:
    """Register an HTTP request."""

    def make(folder: Path) -> Path:
        own = [] if host is None else [("host", host)]
        full = path if path.startswith("/") else API + path
        asked = {"method": method, "path": full, "headers": [*own, *headers], "mebibytes": mebibytes}
        (folder / "request.json").write_text(json.dumps(asked))
        return folder / "request.json"

    hostile("request", name, words)(make)


ORIGINS = {
    "another site": "http://evil.example",
    "no origin (a file, a sandbox)": "null",
    "another port of this machine": "http://127.0.0.1:8888",
    "another name of this machine": "http://localhost:7860",
    "another scheme": f"https://{HOST}",
    "a longer name": f"http://{HOST}.evil.example",
    "a name behind a mark": f"http://evil.example#{HOST}",
    "an empty one": "",
    "a path": f"http://{HOST}/",
    "an extension": "chrome-extension://abcdef",
}
for who, origin in ORIGINS.items():
    request(f"an upload from {who}", "403, requests from other web pages", ("origin", origin))
for place in ("queue/join", "queue/data", "cancel", "reset", "heartbeat/x"):
    request(f"{place} from another site", "403", ("origin", "http://evil.example"), path=place)
EVIL = ("origin", "http://evil.example")
CROSS = ("sec-fetch-site", "cross-site")
PREFLIGHT = ("access-control-request-method", "POST")
IMAGE = ("sec-fetch-dest", "image")
FRAME = ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")
FORM = ("sec-fetch-site", "same-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")
request("a question whether another site may upload", "403", EVIL, PREFLIGHT, method="OPTIONS")
request("two origins", "403", ("origin", f"http://{HOST}"), EVIL)
request("an image of another site", "403, requests from other web sites", CROSS, IMAGE, method="GET", path="queue/data")
request("the page in a frame of another site", "403", CROSS, *FRAME, method="GET", path="/")
request("a form of another port", "403", *FORM)
request("a rebound name", "400, this page is not served under this host name", host="evil.example:7860")
request(
    "a rebound name that is its own origin", "400", ("origin", "http://evil.example:7860"), host="evil.example:7860"
)
request("a rebound name that begins as an address", "400", host="127.0.0.1.evil.example")
request("a rebound name that ends in localhost", "400", host="evil.localhost")
request("an address behind a user", "400", host="127.0.0.1@evil.example")
request("no host", "400", host=None)
request("two hosts", "400", ("host", "evil.example"))
UNUSED = ("file=/etc/passwd", "file=http://169.254.169.254/", "proxy=http://evil.example/", "run/show_prior",
          "call/show_prior", "stream/x", "deep_link", "component_server")  # fmt: skip
for place in UNUSED:
    request(f"a route that the page does not use, {place}", "404", method="GET", path=place)
request("a body of 1 TiB", "413", ("content-length", str(1 << 40)))
request("a body of 40 MiB without a length", "413", mebibytes=40)
request("a body of 40 MiB that claims 7 bytes", "413", ("content-length", "7"), mebibytes=40)
