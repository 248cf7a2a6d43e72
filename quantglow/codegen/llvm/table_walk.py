"""Tables of kernel calls, walked by generated code: on one thread, or several times.

A table entry is four 64-bit words: kernel, arguments, work items, chunks.
"""

from __future__ import annotations

CALL_OF_ENTRY = """
  %e = getelementptr [4 x i64], ptr %table, i64 %i
  %fn = load ptr, ptr %e
  %ap = getelementptr i8, ptr %e, i64 8
  %args = load ptr, ptr %ap
  %np = getelementptr i8, ptr %e, i64 16
  %items = load i64, ptr %np
"""
"""Loads entry ``%i`` of ``%table``: the kernel ``%fn``, its ``%args`` and ``%items``."""

ENTRY_NBYTES = 32

RUN_ALONE = f"""
define void @run_alone(ptr %table, i64 %count) nounwind {{
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %body, label %done
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
{CALL_OF_ENTRY}  call void %fn(ptr %args, i64 0, i64 %items)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %body, label %done
done:
  ret void
}}
"""
"""Walks a table on the calling thread."""

OWN_RUN_ALONE = RUN_ALONE.replace("define", "define internal")
"""``run_alone`` for modules that walk tables themselves."""

LOOP_WORDS = 5
"""Words before the moving pointers in the arguments of a loop: trips, the first row of its table,
the rows, the moving pointers, and the address of a condition or 0."""

MOVING_WORDS = 3
"""Words of a moving pointer: its address in the first trip, bytes to the next trip, and where the
kernel reads it."""

LOOP = f"""
{OWN_RUN_ALONE}
define void @kernel(ptr %args, i64 %begin, i64 %end) nounwind {{
entry:
  %tp = getelementptr i8, ptr %args, i64 8
  %table = load ptr, ptr %tp
  %rp = getelementptr i8, ptr %args, i64 16
  %rows = load i64, ptr %rp
  %mp = getelementptr i8, ptr %args, i64 24
  %count = load i64, ptr %mp
  %cp = getelementptr i8, ptr %args, i64 32
  %condition = load ptr, ptr %cp
  %endless = icmp eq ptr %condition, null
  %moving = getelementptr i8, ptr %args, i64 {8 * LOOP_WORDS}
  br label %trip
trip:
  %t = phi i64 [ 0, %entry ], [ %t1, %run ]
  %trips = load atomic i64, ptr %args monotonic, align 8
  %left = icmp slt i64 %t, %trips
  br i1 %left, label %ask, label %done
ask:
  br i1 %endless, label %move, label %look
look:
  %byte = load i8, ptr %condition
  %holds = icmp ne i8 %byte, 0
  br i1 %holds, label %move, label %done
move:
  %m = phi i64 [ 0, %ask ], [ 0, %look ], [ %m1, %store ]
  %some = icmp slt i64 %m, %count
  br i1 %some, label %store, label %run
store:
  %e = getelementptr [{MOVING_WORDS} x i64], ptr %moving, i64 %m
  %base = load i64, ptr %e
  %sp = getelementptr i8, ptr %e, i64 8
  %stride = load i64, ptr %sp
  %pp = getelementptr i8, ptr %e, i64 16
  %place = load ptr, ptr %pp
  %distance = mul i64 %t, %stride
  %address = add i64 %base, %distance
  store i64 %address, ptr %place
  %m1 = add i64 %m, 1
  br label %move
run:
  call void @run_alone(ptr %table, i64 %rows)
  %t1 = add i64 %t, 1
  br label %trip
done:
  ret void
}}
"""
"""A kernel that walks the table of a loop's body once in each trip, on one thread.

It ends after the trip in which another thread sets the trips to 0.
"""
