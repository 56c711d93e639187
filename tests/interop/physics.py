"""deepinv's physics for the battery: name → (make(n), shape of an image, options of `operator`)."""

from __future__ import annotations

import warnings

import torch

from .packages import need

P = need("deepinv").physics


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _bits(*shape: int) -> torch.Tensor:
    return (torch.rand(*shape, generator=_generator()) < 0.5).float()


def _filter(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=_generator(1))


def _maps(*shape: int) -> torch.Tensor:
    return torch.view_as_complex(torch.randn(*shape, 2, generator=_generator(2)))


def _matrix(x: torch.Tensor) -> torch.Tensor:
    m = torch.randn(7, 36, generator=_generator(3), dtype=torch.float64).to(x.dtype)
    return x.flatten(1) @ m.T


def _quiet(make):
    def made(n):
        with warnings.catch_warnings():  # composing warns that attributes are lost
            warnings.simplefilter("ignore")
            return make(n)

    return made


IMAGE, COMPLEX = (1, 6, 6), (2, 6, 6)

REGISTRY = {
    "denoising": (lambda n: P.Denoising(), IMAGE, {}),
    "inpainting": (lambda n: P.Inpainting(IMAGE, mask=_bits(*IMAGE)), IMAGE, {}),
    "inpainting each": (lambda n: P.Inpainting(IMAGE, mask=_bits(n, *IMAGE)), IMAGE, {}),
    "blur valid": (lambda n: P.Blur(filter=_filter(1, 1, 3, 3)), IMAGE, {}),
    "blur reflect each": (lambda n: P.Blur(filter=_filter(n, 1, 3, 3), padding="reflect"), IMAGE, {}),
    "blur by fft each": (lambda n: P.BlurFFT(IMAGE, filter=_filter(n, 1, 3, 3)), IMAGE, {}),
    "downsampling": (lambda n: P.Downsampling(IMAGE, filter="bicubic", factor=2), IMAGE, {}),
    "compressed sensing": (lambda n: P.CompressedSensing(9, IMAGE, rng=_generator()), IMAGE, {}),
    "compressed sensing, complex": (
        lambda n: P.CompressedSensing(9, (1, 4, 4), dtype=torch.complex64, rng=_generator()),
        (1, 4, 4, 2),
        {"complex": True},
    ),
    "mri": (lambda n: P.MRI(mask=_bits(6, 6)), COMPLEX, {}),
    "mri each": (lambda n: P.MRI(mask=_bits(n, 1, 6, 6).expand(n, 2, 6, 6)), COMPLEX, {}),
    "mri, coils": (lambda n: P.MultiCoilMRI(mask=_bits(6, 6), coil_maps=_maps(3, 6, 6)), COMPLEX, {}),
    "mri, coils each": (
        lambda n: P.MultiCoilMRI(mask=_bits(n, 1, 6, 6).expand(n, 2, 6, 6), coil_maps=_maps(n, 3, 6, 6)),
        COMPLEX,
        {},
    ),
    "stack each": (
        lambda n: P.Inpainting(IMAGE, mask=_bits(n, *IMAGE)).stack(P.Downsampling(IMAGE, filter="bicubic", factor=2)),
        IMAGE,
        {},
    ),
    "stack of one": (lambda n: P.StackedLinearPhysics([P.Denoising()]), IMAGE, {}),
    "stack of complex and real": (
        lambda n: P.LinearPhysics(A=lambda x: torch.fft.rfft2(x, norm="ortho"), img_size=IMAGE).stack(P.Denoising()),
        IMAGE,
        {"adjoint": "autograd"},
    ),
    "composition each": (
        _quiet(lambda n: P.Inpainting(IMAGE, mask=_bits(n, *IMAGE)) * P.Blur(_filter(1, 1, 3, 3), padding="circular")),
        IMAGE,
        {},
    ),
    "a function, complex measurements": (
        lambda n: P.LinearPhysics(A=lambda x: torch.fft.rfft2(x, norm="ortho"), img_size=IMAGE),
        IMAGE,
        {"adjoint": "autograd"},
    ),
    "a function": (lambda n: P.LinearPhysics(A=_matrix, img_size=IMAGE), IMAGE, {"adjoint": "autograd"}),
}
