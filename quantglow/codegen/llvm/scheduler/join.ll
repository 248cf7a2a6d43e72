; Takes part as thread %tid in the inference that was begun last, for threads that a caller brings:
; the next one begins when all of them have returned.  Any number of them may come, at any time,
; thread 0 among them.
define void @join(ptr %pool, i64 %tid, i64 %threads) nounwind {
  %epoch = load atomic i64, ptr %pool acquire, align 8
  call void @share(ptr %pool, i64 %tid, i64 %threads, i64 %epoch)
  ret void
}
