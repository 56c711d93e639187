"""Addressed random numbers: published values of Philox, the right distribution, dependence on the address alone."""

import itertools
import math

import pytest
import torch

from diffem.core import randomness
from diffem.core.randomness import Stream, open_interval, philox

# Known answers for philox4x32-10 distributed with the Random123 library.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(counter, key, expected):
    words = philox(tuple(torch.tensor(c) for c in counter), key)
    assert tuple(int(w) for w in words) == expected


def test_normals_are_normal():
    z = Stream(0, "test").normal(torch.arange(20_000), (50,), dtype=torch.float64).flatten()
    n = len(z)
    # four standard errors of the first four moments of a million normals
    for power, (mean, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert abs(float((z**power).mean()) - mean) < 4 * math.sqrt(variance / n)
    # Kolmogorov–Smirnov at the 0.1 % level
    z = z.sort().values
    gap = (torch.special.ndtr(z) - torch.arange(1, n + 1) / n).abs().max()
    assert gap < 1.95 / math.sqrt(n)


def test_uniforms_are_uniform_and_inside_the_interval():
    u = Stream(0, "test").uniform(torch.arange(20_000), (50,))
    assert 0 < float(u.min()) < float(u.max()) < 1
    u = u.flatten().double().sort().values
    assert (u - (torch.arange(len(u)) + 0.5) / len(u)).abs().max() < 1.95 / math.sqrt(len(u))


def test_a_number_depends_on_its_address_alone():
    stream, index = Stream(3, "test", lap=2), torch.arange(100)
    z = stream.normal(index, (7,), step=5)
    shuffled = torch.randperm(100)
    assert torch.equal(stream.normal(index[shuffled], (7,), step=5), z[shuffled])
    assert torch.equal(stream.normal(index[40:41], (7,), step=5), z[40:41])
    # a longer sample starts with the same numbers
    assert torch.equal(stream.normal(index, (9,), step=5)[:, :7], z)
    assert torch.allclose(stream.normal(index, (7,), step=5, dtype=torch.float64).float(), z, atol=1e-5)


@pytest.mark.parametrize("shape", [(7,), (3, 5), (64,)])
def test_many_numbers_are_generated_in_parts_bit_identically(shape, monkeypatch):
    stream, index, draw = Stream(0, "test"), torch.arange(1000) * 3, torch.arange(1000) % 4
    whole = stream.normal(index, shape, step=2, draw=draw)
    monkeypatch.setattr("diffem.core.randomness.CPU_NUMBERS", 100)
    assert torch.equal(stream.normal(index, shape, step=2, draw=draw), whole)


@pytest.mark.parametrize(
    "other",
    [
        lambda i: Stream(4, "test").normal(i, (64,)),
        lambda i: Stream(3, "test", lap=1).normal(i, (64,)),
        lambda i: Stream(3, "else").normal(i, (64,)),
        lambda i: Stream(3, "test").normal(i, (64,), step=1),
        lambda i: Stream(3, "test").normal(i, (64,), draw=torch.ones_like(i)),
        lambda i: Stream(3, "test").normal(i + 1000, (64,)),
    ],
)
def test_every_part_of_the_address_counts(other):
    index = torch.arange(1000)
    a, b = Stream(3, "test").normal(index, (64,), dtype=torch.float64), other(index).double()
    correlation = float((a * b).mean())
    assert abs(correlation) < 4 / math.sqrt(a.numel())
    for i in (0, 17):  # neighbouring samples are uncorrelated too
        assert abs(float((a[i] * a[i + 1]).mean())) < 4 / math.sqrt(64)


def test_a_permutation_contains_every_number_once():
    stream = Stream(0, "order")
    p = stream.permutation(1000)
    assert torch.equal(p.sort().values, torch.arange(1000))
    assert not torch.equal(p, stream.permutation(1000, step=1))
    assert abs(float(torch.corrcoef(torch.stack([p.double(), torch.arange(1000).double()]))[0, 1])) < 4 / math.sqrt(
        1000
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_numbers_lie_strictly_inside_the_interval(dtype):
    """Also for the lowest and highest words, one in 2²⁴ of which rounded to 1 in float32."""
    words = torch.tensor([0, 255, 256, 2**31, 2**32 - 257, 2**32 - 1])
    u = open_interval(words, dtype)
    assert (u > 0).all()
    assert (u < 1).all()
    assert (u.diff() >= 0).all()


def test_few_variants_of_the_normals_are_compiled(monkeypatch):
    """torch.compile gives up after eight variants of a function, and would leave it uncompiled on the GPU."""
    compiled = []

    def backend(module, inputs):
        compiled.append(module)
        return module.forward

    torch.compiler.reset()
    monkeypatch.setattr(randomness, "_normals", torch.compile(randomness._normals, dynamic=True, backend=backend))
    stream = Stream(0, "noise")
    for grad, rows, shape in itertools.product((True, False), (5, 1, 2), ((5,), (1,), (2, 16))):
        same_draw = torch.zeros(1, dtype=torch.int64).expand(rows)
        steps = (0, torch.tensor(1), torch.tensor([2]))
        for step, draw, dtype in itertools.product(steps, (None, same_draw), (torch.float32, torch.float64)):
            with torch.set_grad_enabled(grad):
                stream.normal(torch.arange(rows), shape, step=step, draw=draw, dtype=dtype)
    assert len(compiled) <= 4  # one row or more, in two precisions
