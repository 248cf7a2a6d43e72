
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
declare i64 @syscall(i64, ...)
declare i64 @pthread_self()
define void @traced(ptr %record, i64 %begin, i64 %end) nounwind {
entry:
  %fn = load ptr, ptr %record
  %ap = getelementptr i64, ptr %record, i64 1
  %args = load ptr, ptr %ap
  %lp = getelementptr i64, ptr %record, i64 2
  %log = load ptr, ptr %lp
  %rp = getelementptr i64, ptr %record, i64 3
  %row = load i64, ptr %rp
  %before = call i64 @llvm.readcyclecounter()
  call void %fn(ptr %args, i64 %begin, i64 %end)
  %after = call i64 @llvm.readcyclecounter()
  %at = atomicrmw add ptr %log, i64 1 monotonic
  %mp = getelementptr i64, ptr %log, i64 1
  %most = load i64, ptr %mp
  %fits = icmp slt i64 %at, %most
  br i1 %fits, label %store, label %done
store:
  %number = add i64 %at, 1
  %event = getelementptr [5 x i64], ptr %log, i64 %number
  store i64 %row, ptr %event
  %thread = call i64 @pthread_self()
  %tp = getelementptr i64, ptr %event, i64 1
  store i64 %thread, ptr %tp
  %bp = getelementptr i64, ptr %event, i64 2
  store i64 %before, ptr %bp
  %fp = getelementptr i64, ptr %event, i64 3
  store i64 %after, ptr %fp
  %items = sub i64 %end, %begin
  %ip = getelementptr i64, ptr %event, i64 4
  store i64 %items, ptr %ip
  br label %done
done:
  ret void
}
