"""`python -m servinglab`: the command line of `servinglab.cli`."""

import sys

from .cli import main

sys.exit(main())
