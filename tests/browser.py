"""The Chromium of this machine, if it has one, for tests that look at pages as people do."""

import shutil

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
