"""Inner loops of convolutions come near the rate of dot products in LLVM's models of cores."""

from __future__ import annotations

import pytest

from tools.inner_loops import PEAKS, inner_loop, is_installed, macs_of, shares

LEAST_SHARE = 0.8
LOOP = """\t.text
.LBB0_1:
\tsdot\tv0.4s, v1.16b, v2.4b[0]
\tsdot\tv3.4s, v1.16b, v2.4b[1]
\tb.ne\t.LBB0_1
.LBB0_2:
\tsmmla\tv0.4s, v1.16b, v2.16b
\tcbnz\tx8, .LBB0_1
"""


def test_the_inner_loop_is_one_block() -> None:
    assert macs_of(inner_loop(LOOP)) == 32


@pytest.mark.slow
@pytest.mark.skipif(not is_installed(), reason="no llvm-mca-19: `make cross-setup` installs it")
@pytest.mark.parametrize("level", PEAKS)
def test_dense_convolutions_keep_cores_busy(level: str) -> None:
    slow = [(str(layer), core, share) for layer, core, _, share in shares(level)]
    assert not [value for value in slow if value[2] < LEAST_SHARE]
