"""The first bytes of a file determine whether it is decoded, by which decoder, and to which values."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from diffem import InputError
from diffem.app.upload import decode
from diffem.files.decoding import open_picture, picture_format
from diffem.mri.image_files import read_images

LEVELS = (-2.0, 2.0)
COLOURS = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
PICTURE = Image.fromarray(COLOURS)


def sample(data, event_shape, levels, **options):
    """The sample in the content of an uploaded file."""
    return decode(data, event_shape).sample(event_shape, levels, **options)


def saved(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def grey(value, mode="L"):
    return Image.new(mode, (8, 8), value)


class TestFormats:
    @pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True})])
    def test_lossless_pictures_are_what_was_saved(self, kind, options):
        x = sample(saved(PICTURE, kind, **options), (3, 8, 8), (0.0, 255.0))
        assert torch.equal(x, torch.from_numpy(COLOURS).movedim(-1, 0).float())

    def test_jpeg_and_lossy_webp(self):
        for kind in ("JPEG", "WEBP"):
            data = saved(grey((77, 77, 77), "RGB"), kind)
            assert picture_format(data) == kind
            # conversion to YCbCr and back rounds: two of 256 levels
            assert (sample(data, (8, 8), (0.0, 255.0)) - 77).abs().max() <= 2

    @pytest.mark.parametrize(
        "kind",
        ["EPS", "TIFF", "BMP", "GIF", "PCX", "PPM", "ICO", "TGA", "SGI", "JPEG2000", "PDF", "IM", "MSP", "DDS", "AVIF"],
    )
    def test_no_other_decoder_sees_a_file(self, kind, monkeypatch):
        """Pillow would open each of these; EPS by starting Ghostscript."""
        try:
            data = saved(grey(0, "1" if kind == "MSP" else "RGB"), kind)
        except (KeyError, OSError, ValueError):
            pytest.skip(f"this Pillow cannot write {kind}")
        # decoders of all other formats would now fail with another error
        monkeypatch.setattr(ImageFile.ImageFile, "__init__", None)
        with pytest.raises(InputError, match=r"PNG, JPEG, WebP or a \.npy array"):
            decode(data, (8, 8))

    def test_ghostscript_is_not_started(self, monkeypatch):
        started = []
        monkeypatch.setattr("subprocess.Popen", lambda *a, **k: started.append(a))
        monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *a, **k: started.append(a), raising=False)
        data = saved(grey(0, "RGB"), "EPS")
        for content in (data, b"\x89PNG\r\n\x1a\n" + data, b"\xff\xd8\xff" + data):
            with pytest.raises(InputError):
                decode(content, (8, 8))
        assert started == []

    def test_each_signature_leads_to_its_own_decoder(self):
        """A file that begins as one format and continues as another is not decoded as the other."""
        png = saved(PICTURE, "PNG")
        for start in (b"\xff\xd8\xff", b"RIFF\x00\x00\x00\x00WEBPVP8L"):
            with pytest.raises(InputError):
                decode(start + png, (8, 8))
        with (
            pytest.raises(InputError, match="neither JPEG nor PNG"),
            open_picture(saved(PICTURE, "WEBP"), ("JPEG", "PNG"), 1, "x"),
        ):
            pass


class TestValues:
    def test_sixteen_bits_are_scaled_not_clipped(self):
        values = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
        x = sample(saved(Image.fromarray(values), "PNG"), (8, 8), (0.0, 1.0))
        assert torch.allclose(x, torch.from_numpy(values.astype(np.float32) / 65535), atol=1e-6)
        colour = sample(saved(Image.fromarray(values), "PNG"), (3, 8, 8), (0.0, 1.0))
        assert torch.equal(colour, x.expand(3, 8, 8))

    @pytest.mark.parametrize("kind", ["PNG", "WEBP"])
    def test_transparent_pixels_are_white(self, kind):
        ink = np.zeros((8, 8, 4), np.uint8)
        ink[2:4, 2:4, 3] = 255  # black, and opaque only here
        x = sample(
            saved(Image.fromarray(ink), kind, **({"lossless": True} if kind == "WEBP" else {})), (8, 8), (0.0, 1.0)
        )
        expected = torch.ones(8, 8)
        expected[2:4, 2:4] = 0
        assert torch.equal(x, expected)

    def test_the_orientation_is_applied(self):
        exif = Image.Exif()
        exif[0x0112] = 6  # to be rotated by 90° clockwise for display
        x = sample(saved(PICTURE, "PNG", exif=exif), (3, 8, 8), (0.0, 255.0))
        assert torch.equal(x, torch.from_numpy(np.rot90(COLOURS, -1).copy()).movedim(-1, 0).float())

    @pytest.mark.parametrize(
        "exif",
        [
            b"",
            b"Exif\x00\x00",
            b"Exif\x00\x00MM\x00*\xff\xff\xff\xff",
            b"Exif\x00\x00II*\x00\x08\x00\x00\x00\xff\xff" + b"\xff" * 40,
        ],
    )
    @pytest.mark.filterwarnings("ignore:Corrupt EXIF")
    def test_damaged_exif_and_colour_profiles_do_no_harm(self, exif):
        plain = sample(saved(PICTURE, "JPEG", quality=95), (3, 8, 8), LEVELS)
        odd = saved(PICTURE, "JPEG", quality=95, exif=exif, icc_profile=b"\x00" * 200)
        assert torch.equal(sample(odd, (3, 8, 8), LEVELS), plain)

    def test_cmyk_colours_become_grey(self):
        x = sample(saved(Image.new("CMYK", (8, 8), (0, 0, 0, 255)), "JPEG"), (8, 8), (0.0, 1.0))
        assert x.max() <= 2 / 255  # all inks together are black

    def test_an_array_keeps_its_values(self):
        buffer = io.BytesIO()
        np.save(buffer, np.asfortranarray(np.arange(64).reshape(8, 8)))
        upload = decode(buffer.getvalue(), (8, 8))
        assert torch.equal(upload.sample((8, 8), LEVELS, invert=True), torch.arange(64.0).reshape(8, 8))


class TestRefusals:
    @pytest.mark.parametrize("kind", ["PNG", "WEBP"])
    def test_animations_are_rejected(self, kind):
        data = saved(grey(0), kind, save_all=True, append_images=[grey(255), grey(9)])
        with pytest.raises(InputError, match="animation of 3 frames"):
            decode(data, (8, 8))

    def test_the_first_picture_of_a_stereo_jpeg_is_a_jpeg(self):
        data = saved(grey(77), "MPO", save_all=True, append_images=[grey(200)])
        assert (sample(data, (8, 8), (0.0, 255.0)) - 77).abs().max() <= 1

    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
    def test_a_file_that_is_cut_off_anywhere_is_rejected(self, kind):
        data = saved(Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 40, 3), dtype=np.uint8)), kind)
        for length in range(12, len(data) * 9 // 10, max(1, len(data) // 25)):
            with pytest.raises(InputError):
                decode(data[:length], (8, 8))

    def test_large_pictures_before_they_are_decoded(self):
        jpeg = bytearray(saved(grey(0), "JPEG"))
        place = jpeg.index(b"\xff\xc0") + 5
        jpeg[place : place + 4] = struct.pack(">HH", 65_500, 65_500)
        webp = b"RIFF\x1e\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00" + bytes(4) + b"\xfe\xff\xff" * 2 + bytes(8)
        for data in (bytes(jpeg), webp):
            with pytest.raises(InputError, match=r"has .* pixels, the limit is 64 million"):
                decode(data, (8, 8))

    def test_text_and_profiles_that_unpack_to_gigabytes(self):
        """Chunks of a PNG that a decoder unpacks beside its pixels."""

        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        zeros = zlib.compress(bytes(1 << 26), 9)
        png = saved(PICTURE, "PNG")
        for extra in (
            chunk(b"zTXt", b"a\0\0" + zeros),
            chunk(b"iTXt", b"a\0\1\0\0\0" + zeros),
            chunk(b"iCCP", b"a\0\0" + zeros),
        ):
            with pytest.raises(InputError, match="damaged: Decompressed data too large"):
                decode(png[:33] + extra + png[33:], (8, 8))


class TestDataSets:
    """`diffem prepare` and the source mri_images read 8-bit grey images, and reject pictures that contain more."""

    def test_values_of_sixteen_bits_are_rejected(self, tmp_path):
        Image.fromarray(np.full((8, 8), 1000, np.uint16)).save(tmp_path / "x.png")
        with pytest.raises(InputError, match=r"x\.png has more than 8 bits per value"):
            read_images(str(tmp_path))

    @pytest.mark.parametrize(("kind", "channels"), [(2, 3), (4, 2), (6, 4)])
    def test_sixteen_bits_of_colours_and_of_grey_with_transparency(self, kind, channels, tmp_path):
        def chunk(name, data):
            return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

        header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, kind, 0, 0, 0))
        pixels = chunk(b"IDAT", zlib.compress((b"\0" + b"\xff\xff" * channels * 8) * 8))
        (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b""))
        with pytest.raises(InputError, match=r"x\.png has more than 8 bits per value"):
            read_images(str(tmp_path))

    def test_partly_transparent_pictures_are_rejected(self, tmp_path):
        Image.new("RGBA", (8, 8), (9, 9, 9, 255)).save(tmp_path / "x.png")
        assert (read_images(str(tmp_path)).pixels == 9).all()
        Image.new("RGBA", (8, 8), (9, 9, 9, 254)).save(tmp_path / "x.png")
        with pytest.raises(InputError, match=r"x\.png is partly transparent"):
            read_images(str(tmp_path))

    def test_animations_are_rejected(self, tmp_path):
        (tmp_path / "x.png").write_bytes(saved(grey(0), "PNG", save_all=True, append_images=[grey(255)]))
        with pytest.raises(InputError, match="animation of 2 frames"):
            read_images(str(tmp_path))

    def test_the_orientation_is_applied(self, tmp_path):
        exif = Image.Exif()
        exif[0x0112] = 3  # upside down
        PICTURE.convert("L").save(tmp_path / "x.png", exif=exif)
        assert np.array_equal(read_images(str(tmp_path)).pixels[0], np.rot90(np.asarray(PICTURE.convert("L")), 2))
