"""`python -m servinglab`: the command line of `servinglab.cli`."""

import sys

from servinglab.cli.main import main

sys.exit(main())
