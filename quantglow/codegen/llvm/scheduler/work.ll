; A worker: waits for inferences and takes part in each, until the pool is shut.
;
; It spins for a bounded time, in which the next inference may come, then sleeps: a spinning worker
; takes its core from other processes.
define void @work(ptr %pool, i64 %tid, i64 %threads, i64 %epoch) nounwind {
entry:
  br label %idle
idle:
  %seen = phi i64 [ %epoch, %entry ], [ %now, %run ]
  %start = <clock>
  br label %spin
spin:
  %now = load atomic i64, ptr %pool seq_cst, align 8
  %changed = icmp ne i64 %now, %seen
  br i1 %changed, label %wake, label %still
still:
  <pause>
  %clock = <clock>
  %spent = sub i64 %clock, %start
  %tired = icmp ugt i64 %spent, <spin>
  br i1 %tired, label %sleep, label %spin
sleep:
  %sp = getelementptr i8, ptr %pool, i64 <pool.sleepers>
  ; Counted before it sleeps, and sequentially consistent: see run_shared.ll.  Sleeping may return
  ; early; the worker looks at the epoch again in any case.
  %s0 = atomicrmw add ptr %sp, i64 1 seq_cst
  <sleep>
  %s1 = atomicrmw sub ptr %sp, i64 1 seq_cst
  br label %spin
wake:
  %qp = getelementptr i8, ptr %pool, i64 <pool.stop>
  %stop = load atomic i64, ptr %qp seq_cst, align 8
  %quit = icmp ne i64 %stop, 0
  br i1 %quit, label %done, label %run
run:
  ; For runtime/native/threads.py, which places workers on processors.
  %here = call i32 @sched_getcpu()
  %processor = sext i32 %here to i64
  %pp = getelementptr i8, ptr %pool, i64 <pool.processors>
  %own = getelementptr i64, ptr %pp, i64 %tid
  store i64 %processor, ptr %own
  call void @share(ptr %pool, i64 %tid, i64 %threads, i64 %now)
  br label %idle
done:
  ret void
}
