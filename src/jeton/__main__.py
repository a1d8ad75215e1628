"""`python -m jeton` is the `jeton` command."""

import sys

from jeton.cli import main

if __name__ == "__main__":
    sys.exit(main())
