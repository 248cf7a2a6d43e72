"""Every test runs with the verifier on."""

from __future__ import annotations

import os

os.environ.setdefault("QUANTGLOW_VERIFY", "1")
