
declare void @llvm.aarch64.isb(i32)

define internal i64 @clock() nounwind {
  %ticks = call i64 @llvm.readcyclecounter()
  %read = call i64 @llvm.read_volatile_register.i64(metadata !0)
  %rate = call i64 @llvm.umax.i64(i64 %read, i64 1)
  %scale = udiv i64 1073741824, %rate
  %time = mul i64 %ticks, %scale
  ret i64 %time
}
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.read_volatile_register.i64(metadata)
!0 = !{!"CNTFRQ_EL0"}
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i64 @llvm.umax.i64(i64, i64)

define void @shut(ptr %pool) nounwind {
  %qp = getelementptr i8, ptr %pool, i64 64
  store atomic i64 1, ptr %qp seq_cst, align 8
  %old = atomicrmw add ptr %pool, i64 1 seq_cst
  %w = call i64 (i64, ...) @syscall(i64 98, ptr %pool, i32 129, i32 2147483647)
  ret void
}
