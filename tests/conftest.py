"""Every test runs with the verifier on and without the kernel cache on disk."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

os.environ.setdefault("QUANTGLOW_VERIFY", "1")
# Tests compile what they check: no kernel of an earlier run, none left in the user's cache.
os.environ.setdefault("QUANTGLOW_CACHE_DIR", "")

# Deadlines are off: the time of an example depends on what else the machine runs.
# "ci" repeats the same draws, so that a change is judged and not the luck of a run;
# "nightly" draws ten times as many. HYPOTHESIS_PROFILE selects one.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("nightly", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# A shell starts background jobs with Ctrl-C ignored; tests of it need Python's handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
