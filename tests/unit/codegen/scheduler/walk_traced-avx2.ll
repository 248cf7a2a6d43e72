
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
declare i64 @syscall(i64, ...)
declare i64 @pthread_self()
define i64 @walk_traced(ptr %state) nounwind {
entry:
  %table = load ptr, ptr %state
  %cp = getelementptr i64, ptr %state, i64 1
  %count = load i64, ptr %cp
  %pp = getelementptr i64, ptr %state, i64 2
  %place = load ptr, ptr %pp
  %lp = getelementptr i64, ptr %state, i64 3
  %last = load ptr, ptr %lp
  %full = icmp ugt ptr %place, %last
  br i1 %full, label %none, label %begin
none:
  ret i64 0
begin:
  %thread = call i64 @pthread_self()
  store i64 %thread, ptr %place
  %times = getelementptr i64, ptr %place, i64 2
  %fp = getelementptr i64, ptr %place, i64 1
  %before = call i64 @llvm.readcyclecounter()
  store i64 %before, ptr %fp
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %body, label %done
body:
  %i = phi i64 [ 0, %begin ], [ %next, %body ]

  %e = getelementptr [4 x i64], ptr %table, i64 %i
  %fn = load ptr, ptr %e
  %ap = getelementptr i8, ptr %e, i64 8
  %args = load ptr, ptr %ap
  %np = getelementptr i8, ptr %e, i64 16
  %items = load i64, ptr %np
  call void %fn(ptr %args, i64 0, i64 %items)
  %after = call i64 @llvm.readcyclecounter()
  %tp = getelementptr i64, ptr %times, i64 %i
  store i64 %after, ptr %tp
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %body, label %done
done:
  %behind = getelementptr i64, ptr %times, i64 %count
  store ptr %behind, ptr %pp
  ret i64 1
}
