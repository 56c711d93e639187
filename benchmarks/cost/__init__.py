r"""The cost of a step, compared with azula and deepinv: `python -m benchmarks.cost [--quick] [--devices cpu cuda]`.

All libraries use one network, one batch and one operator (a quarter of the pixels, a different quarter for each image)
in one process. A step is a DDPM step from σ_t to σ_s with the correction of the posterior method. For every method, the
benchmark measures forward passes and vector–Jacobian products of the network (counted at the network), time, peak
memory, and the difference between the results of the libraries. Steps are timed in rounds, with one step of each
library per round in rotating order, and compared within a round. Medians of the ratios are reported, since a busy
machine slows all libraries equally.

Results of azula are compared in float64, and those of deepinv, which computes in float32, in float32. Both are compared
without the curvature guard, which they do not have. If the norm of a library runs over the whole batch (azula's DPS),
the batch size is one. ΠGDM and DPS get the same weights in all libraries: azula accepts any pseudo-inverse and any ζ,
deepinv any weight.
"""
