"""Every test runs with the verifier on and without the kernel cache on disk."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ.setdefault("QUANTGLOW_VERIFY", "1")
# Tests compile what they check: no kernel of an earlier run, none left in the user's cache.
os.environ.setdefault("QUANTGLOW_CACHE_DIR", "")

# How long an example takes says what else runs on the machine.
settings.register_profile("quantglow", deadline=None)
settings.load_profile("quantglow")
