
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i64 @llvm.umax.i64(i64, i64)

define void @shut(ptr %pool) nounwind {
  %qp = getelementptr i8, ptr %pool, i64 64
  store atomic i64 1, ptr %qp seq_cst, align 8
  %old = atomicrmw add ptr %pool, i64 1 seq_cst
  %w = call i64 (i64, ...) @syscall(i64 202, ptr %pool, i32 129, i32 2147483647)
  ret void
}
