
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i64 @llvm.umax.i64(i64, i64)

define void @run_alone(ptr %table, i64 %count) nounwind {
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %body, label %done
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]

  %e = getelementptr [4 x i64], ptr %table, i64 %i
  %fn = load ptr, ptr %e
  %ap = getelementptr i8, ptr %e, i64 8
  %args = load ptr, ptr %ap
  %np = getelementptr i8, ptr %e, i64 16
  %items = load i64, ptr %np
  call void %fn(ptr %args, i64 0, i64 %items)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %body, label %done
done:
  ret void
}
