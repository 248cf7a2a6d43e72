; Begins an inference, wakes sleeping workers and takes part as thread 0.
define void @run_shared(ptr %pool, ptr %table, i64 %count, i64 %threads) nounwind {
entry:
  call void @begin(ptr %pool, ptr %table, i64 %count)
  ; No other thread begins an inference meanwhile.
  %epoch = load atomic i64, ptr %pool acquire, align 8
  ; Sequentially consistent, as is the store of the new epoch: either this thread sees the sleeper
  ; and wakes it, or the sleeper sees the new epoch and does not sleep.  With acquire and release
  ; only, both could miss each other's store (Dekker's pattern).
  %sp = getelementptr i8, ptr %pool, i64 <pool.sleepers>
  %sleepers = load atomic i64, ptr %sp seq_cst, align 8
  %any = icmp sgt i64 %sleepers, 0
  br i1 %any, label %wake, label %go
wake:
  <wake>
  br label %go
go:
  call void @share(ptr %pool, i64 0, i64 %threads, i64 %epoch)
  ret void
}
