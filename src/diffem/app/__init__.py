"""A page to look at a run with: what it does is in `actions`, how it draws in `panels`, the page itself in `page`."""
