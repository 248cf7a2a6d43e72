; Begins an inference: resets its claims, then publishes its epoch.
define void @begin(ptr %pool, ptr %table, i64 %count) nounwind {
entry:
  %before = load atomic i64, ptr %pool acquire, align 8
  %epoch = add i64 %before, 1
  %tag = shl i64 %epoch, 32
  %lp = getelementptr i8, ptr %pool, i64 <pool.claims>
  %claims = load ptr, ptr %lp
  br label %reset
; Chunks and the count of those done come before the claims, which carry the new epoch: a worker
; that reads a claim of this epoch (acquire) finds both.
reset:
  %i = phi i64 [ 0, %entry ], [ %next, %reset ]
  %claim = getelementptr [<claim.words> x i64], ptr %claims, i64 %i
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
  %tp = getelementptr i8, ptr %pool, i64 <pool.table>
  store ptr %table, ptr %tp
  %cp = getelementptr i8, ptr %pool, i64 <pool.count>
  store i64 %count, ptr %cp
  ; The new epoch starts the workers.  Sequentially consistent, as is the worker's count of
  ; sleepers: see run_shared.ll.
  store atomic i64 %epoch, ptr %pool seq_cst, align 8
  ret void
}
