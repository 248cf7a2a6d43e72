"""Classes of effort: how many examples a property test draws, by what one of them costs.

``HYPOTHESIS_PROFILE`` is ``dev`` by default, which draws the same examples in every run and on
every machine: a first run and a change are judged, not luck.  ``fresh`` draws as many with a new
seed each time, ``nightly`` many; they are for searching.  ``emulated`` draws few, always the same:
an emulated processor takes ten times as long.

==================  ==============================================  ==========  =======  ========
class               one example                                     dev, fresh  nightly  emulated
==================  ==============================================  ==========  =======  ========
none                under 10 ms: arithmetic, one pass over a graph  50          1000     5
``moderate``        under 60 ms: a network interpreted, a kernel    20          200      2
``expensive``       under 500 ms: a network compiled, each target   6           50       1
``very_expensive``  seconds: a model quantized and compiled         1           10       1
==================  ==============================================  ==========  =======  ========
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "dev")

# Deadlines and checks of speed are off: the time of an example depends on other processes.
BASE = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("dev", BASE, max_examples=50, derandomize=True)
settings.register_profile("fresh", BASE, max_examples=50)
settings.register_profile("nightly", BASE, max_examples=1000)
settings.register_profile("emulated", BASE, max_examples=5, derandomize=True)
settings.load_profile(PROFILE)


def effort(quick: int, nightly: int) -> settings:
    """Settings of the selected profile, with its number of examples for one class."""
    few = max(1, quick // 10)
    return settings(max_examples={"nightly": nightly, "emulated": few}.get(PROFILE, quick))


moderate = effort(20, 200)
expensive = effort(6, 50)
very_expensive = effort(1, 10)
exhaustive = settings(max_examples=3000, phases=[Phase.generate], database=None)
"""For searches, which end when they have found what they look for."""
