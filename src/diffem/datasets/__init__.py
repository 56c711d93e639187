"""Data sets and simulated measurements of them; `runs/sources.py` names their functions."""
