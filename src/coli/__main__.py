"""`python -m coli`."""

from __future__ import annotations

import sys

from coli.cli import main

sys.exit(main())
