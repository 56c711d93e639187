"""Other libraries' operators and denoisers here, ours there; each module imports its package, so only those who use it need it.

`diffem.interop.deepinv`, `diffem.interop.azula`, `diffem.interop.diffusers` (the extra `interop`), and `diffem.em.exports`, which
needs no other package.
"""
