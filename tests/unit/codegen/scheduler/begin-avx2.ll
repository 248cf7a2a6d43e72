
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i64 @llvm.umax.i64(i64, i64)

define void @begin(ptr %pool, ptr %table, i64 %count) nounwind {
entry:
  %before = load atomic i64, ptr %pool acquire, align 8
  %epoch = add i64 %before, 1
  %tag = shl i64 %epoch, 32
  %lp = getelementptr i8, ptr %pool, i64 144
  %claims = load ptr, ptr %lp
  br label %reset
reset:
  %i = phi i64 [ 0, %entry ], [ %next, %reset ]
  %claim = getelementptr [4 x i64], ptr %claims, i64 %i
  %done = getelementptr i8, ptr %claim, i64 8
  %chp = getelementptr i8, ptr %claim, i64 16
  %e = getelementptr [4 x i64], ptr %table, i64 %i
  %ep = getelementptr i8, ptr %e, i64 24
  %chunks = load i64, ptr %ep
  store i64 %chunks, ptr %chp
  store atomic i64 0, ptr %done release, align 8
  store atomic i64 %tag, ptr %claim release, align 8
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %reset, label %start
start:
  %tp = getelementptr i8, ptr %pool, i64 128
  store ptr %table, ptr %tp
  %cp = getelementptr i8, ptr %pool, i64 136
  store i64 %count, ptr %cp
  store atomic i64 %epoch, ptr %pool seq_cst, align 8
  ret void
}
