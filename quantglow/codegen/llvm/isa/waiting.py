"""How threads wait for each other: instructions of a processor, calls of a system."""

from __future__ import annotations

from dataclasses import dataclass

FUTEX_SLEEP = """%low = trunc i64 %seen to i32
  %w = call i64 (i64, ...) @syscall(i64 {number}, ptr %pool, i32 128, i32 %low, ptr null)"""
FUTEX_WAKE = "%w = call i64 (i64, ...) @syscall(i64 {number}, ptr %pool, i32 129, i32 2147483647)"

SLEEP_MILLISECONDS = 1
"""Time between two looks at a word that another thread will change."""

POSIX = """
define internal i64 @now() nounwind {{
  %time = alloca [2 x i64], align 8
  %failed = call i32 @clock_gettime(i32 {clock}, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %rest = getelementptr i8, ptr %time, i64 8
  %nanoseconds = load i64, ptr %rest, align 8
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %nanoseconds
  ret i64 %sum
}}
declare i32 @clock_gettime(i32, ptr)
declare i32 @usleep(i32)
"""
"""Nanoseconds of the monotonic clock of POSIX, whose number differs between systems."""

WINDOWS = """
define internal i64 @now() nounwind {
  %time = alloca i64, align 8
  %failed = call i32 @QueryPerformanceCounter(ptr %time)
  %ticks = load i64, ptr %time, align 8
  ret i64 %ticks
}
declare i32 @QueryPerformanceCounter(ptr)
declare void @Sleep(i32)
"""
LINUX_CLOCK, MACOS_CLOCK = 1, 6
WINDOWS_HERTZ = 1e7
"""Ticks in a second of the performance counter of Windows 10 and later."""


@dataclass(frozen=True)
class WaitInstructions:
    """How threads wait for each other, as LLVM IR.

    ``pause``         instruction for loops that wait for another processor, or nothing
    ``sleep``         instructions that suspend the thread while the 32-bit word at ``%pool`` is
                      the low half of ``%seen``; they may return early
    ``wake``          instructions that wake all such threads
    ``clock``         call that reads a steady clock, as i64
    ``hertz``         ticks of that clock in a second
    ``declarations``  functions that these use
    """

    pause: str
    sleep: str
    wake: str
    clock: str
    hertz: float
    declarations: str


def futex_waiting(
    number: int, pause: str, clock: str, hertz: float, declarations: str
) -> WaitInstructions:
    """Waiting by Linux's futex, whose system call has this ``number``."""
    sleep, wake = (text.format(number=number) for text in (FUTEX_SLEEP, FUTEX_WAKE))
    syscall = "declare i64 @syscall(i64, ...)\n"
    return WaitInstructions(pause, sleep, wake, clock, hertz, declarations + syscall)


def polling(triple: str) -> WaitInstructions:
    """Waiting of threads that look from time to time, on the system of a triple.

    Plain LLVM IR has no instruction that waits, and C libraries lay out mutexes and conditions
    differently.  A late worker delays nobody: the other threads take its chunks.
    """
    if "windows" in triple:
        sleep = f"call void @Sleep(i32 {SLEEP_MILLISECONDS})"
        return WaitInstructions("", sleep, "", "call i64 @now()", WINDOWS_HERTZ, WINDOWS)
    sleep = f"%w = call i32 @usleep(i32 {1000 * SLEEP_MILLISECONDS})"
    clock = MACOS_CLOCK if "apple" in triple else LINUX_CLOCK
    return WaitInstructions("", sleep, "", "call i64 @now()", 1e9, POSIX.format(clock=clock))
