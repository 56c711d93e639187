"""A page to look at a run with.

What is looked at is a `viewer`; requests are checked in `asked` and `upload`, turned into observations in `observing` and answered in `drawing`
and `standing`; `panels` makes pictures of the answers, and the page itself is in `page`.
"""
