"""`python -m diffem`, as `accelerate launch -m diffem` and `torchrun -m diffem` need it."""

from .cli import main

main()
