"""``python -m quantglow`` is the ``quantglow`` command."""

import sys

from quantglow.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
