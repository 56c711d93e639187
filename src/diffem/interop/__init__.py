"""Adapters between diffem and other libraries: their operators and denoisers in diffem, and diffem's in them.

`diffem.interop.deepinv`, `diffem.interop.azula` and `diffem.interop.diffusers` need the extra `interop`; each module
imports only its own library. `diffem.interop.hub` needs no other package.
"""
