"""A page to look at a run with.

What is looked at is a `viewer`. Requests are checked in `guard` (who sent them), `asked` (how much they ask for) and
`upload` (which file), turned into observations in `observing` and answered in `drawing` and `standing`; `panels` makes
pictures of the answers. The page itself is in `page`, its upload field in `incoming`; `server` serves it and `folder`
keeps the uploads.
"""
