"""`python -m sconce_embed` is the command sconce."""

import sys

from . import run_command

sys.exit(run_command(sys.argv[1:]))
