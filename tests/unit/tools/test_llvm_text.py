"""Normal texts of kernels: names do not count, everything else does."""

from __future__ import annotations

import pytest

from tools.llvm_text import normal_text

TEXT = """
declare float @llvm.fabs.f32(float)

define void @kernel(ptr %args, i64 %begin) nounwind {
entry:
  %v1 = load float, ptr %args, align 8 ; the operand
  br label %loop2.body
loop2.body:
  %v3 = phi i64 [ %begin, %entry ], [ %v4, %loop2.body ]
  %v5 = call ptr asm "%v1", "=r,0"(ptr %args), !range !7
  %v4 = add i64 %v3, 1
  br label %loop2.body
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%v3", "%index"),
        ("loop2.body", "again"),
        ("@kernel(", "@quantglow_kernel_0123456789abcdef0123456789abcdef("),
        ("!7", "!1"),
        (" ; the operand", ""),
        ("  br", "    br"),
    ],
)
def test_names_do_not_count(old: str, new: str) -> None:
    changed = TEXT.replace(old, new)
    assert changed != TEXT and normal_text(changed) == normal_text(TEXT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("add i64 %v3, 1", "add i64 %v3, 2"),
        ("add i64 %v3", "add i64 %begin"),
        ("align 8", "align 4"),
        ("label %loop2.body", "label %entry"),
        ("@llvm.fabs.f32", "@llvm.sqrt.f32"),
        ('asm "%v1"', 'asm "%v2"'),
        ("nounwind", ""),
    ],
)
def test_everything_else_counts(old: str, new: str) -> None:
    assert normal_text(TEXT.replace(old, new)) != normal_text(TEXT)
