; run_alone with a clock: it is read before the first kernel and after each, so that the end of one
; is the beginning of the next.  Returns 0, and runs nothing, where the page of the log is full.
<declarations>declare i64 @pthread_self()
define i64 @walk_traced(ptr %state) nounwind {
entry:
  %table = load ptr, ptr %state
  %cp = getelementptr i64, ptr %state, i64 <state.count>
  %count = load i64, ptr %cp
  %pp = getelementptr i64, ptr %state, i64 <state.place>
  %place = load ptr, ptr %pp
  %lp = getelementptr i64, ptr %state, i64 <state.last>
  %last = load ptr, ptr %lp
  %full = icmp ugt ptr %place, %last
  br i1 %full, label %none, label %begin
none:
  ret i64 0
begin:
  %thread = call i64 @pthread_self()
  store i64 %thread, ptr %place
  %times = getelementptr i64, ptr %place, i64 <run.words>
  %fp = getelementptr i64, ptr %place, i64 1
  %before = <clock>
  store i64 %before, ptr %fp
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %body, label %done
body:
  %i = phi i64 [ 0, %begin ], [ %next, %body ]
<entry>
  call void %fn(ptr %args, i64 0, i64 %items)
  %after = <clock>
  %tp = getelementptr i64, ptr %times, i64 %i
  store i64 %after, ptr %tp
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %body, label %done
; The place of the next run moves only when this one is whole.
done:
  %behind = getelementptr i64, ptr %times, i64 %count
  store ptr %behind, ptr %pp
  ret i64 1
}
