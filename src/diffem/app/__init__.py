"""A local web page that displays a run.

`viewer` reads the run. `guard` rejects requests from other web sites, `limits` limits the numbers in a request, and
`upload` decodes an uploaded file. `observing` turns the request into observations, `drawing` and `status` compute the
answer, and `panels` renders it as HTML. `page` lays out the controls, and `actions` holds their handlers. `server`
serves the page, and `folder` manages the temporary folder of uploads.
"""
