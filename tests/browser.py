"""The Chromium of this machine, if one is installed, for tests of web pages."""

import shutil

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
