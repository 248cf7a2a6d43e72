; Functions that the run-time system calls; <declarations> are those that waiting needs.
<declarations>declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i64 @llvm.umax.i64(i64, i64)
