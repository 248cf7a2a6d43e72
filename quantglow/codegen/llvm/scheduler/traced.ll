; Stands in a table in place of a kernel: reads the clock, calls the kernel with its own arguments,
; reads the clock again and adds an event to a log that all threads share.
<declarations>declare i64 @pthread_self()
define void @traced(ptr %record, i64 %begin, i64 %end) nounwind {
entry:
  %fn = load ptr, ptr %record
  %ap = getelementptr i64, ptr %record, i64 1
  %args = load ptr, ptr %ap
  %lp = getelementptr i64, ptr %record, i64 2
  %log = load ptr, ptr %lp
  %rp = getelementptr i64, ptr %record, i64 3
  %row = load i64, ptr %rp
  %before = <clock>
  call void %fn(ptr %args, i64 %begin, i64 %end)
  %after = <clock>
  ; Only the place in the log is claimed, so it needs no order (monotonic).
  %at = atomicrmw add ptr %log, i64 1 monotonic
  %mp = getelementptr i64, ptr %log, i64 1
  %most = load i64, ptr %mp
  ; A full log counts on: its head says how many events there were.
  %fits = icmp slt i64 %at, %most
  br i1 %fits, label %store, label %done
store:
  %number = add i64 %at, 1
  %event = getelementptr [<event.words> x i64], ptr %log, i64 %number
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
