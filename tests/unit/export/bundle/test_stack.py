"""LLVM's reports on frames become bytes, and vector registers of unknown width."""

from __future__ import annotations

from quantglow.export.bundle.object_tables import MOST_VLEN, StackUse, parse_frames

REPORT = """
warning: <unknown>:0:0: stack frame size (1408) exceeds limit (0) in function 'net_kernel4'
remark: <unknown>:0:0:
Function: net_kernel4
Offset: [SP-8], Type: Spill, Align: 8, Size: vscale x 8
Offset: [SP-48], Type: Spill, Align: 8, Size: vscale x 32
Offset: [SP-640], Type: Variable, Align: 64, Size: 512
remark: <unknown>:0:0:
Function: net_clear
warning: <unknown>:0:0: stack frame size (16) exceeds limit (0) in function 'net_run'
remark: <unknown>:0:0:
Function: net_run
Offset: [SP-8], Type: Spill, Align: 8, Size: 8
"""


def test_frames_have_registers_and_what_aligns_them() -> None:
    assert parse_frames(REPORT) == {
        "net_kernel4": StackUse(1408 + 64 - 16, 6),
        "net_run": StackUse(16),
    }


def test_stacks_add_up_and_have_a_maximum() -> None:
    one, other = StackUse(16, 2), StackUse(100)
    assert one + other == StackUse(116, 2)
    assert StackUse.most([one, other]) == StackUse(100, 2)
    assert StackUse.most([]) == StackUse()
    assert one.at(128) == 48 and one.most_nbytes == 16 + MOST_VLEN // 4
