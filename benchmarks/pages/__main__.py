import argparse
import sys

from . import __doc__ as description
from . import main

parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=description)
parser.add_argument("--check", action="store_true", help="only compare the pages with the results")
sys.exit(main(parser.parse_args().check))
