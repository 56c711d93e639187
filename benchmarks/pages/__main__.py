import sys

from . import main

sys.exit(main("--check" in sys.argv[1:]))
