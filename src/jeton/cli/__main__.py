"""`python -m jeton.cli` is the `jeton` command."""

import sys

from jeton.cli import main

if __name__ == "__main__":
    sys.exit(main())
