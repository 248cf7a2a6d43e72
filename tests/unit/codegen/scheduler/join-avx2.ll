
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i64 @llvm.umax.i64(i64, i64)

define internal void @share(ptr %pool, i64 %tid, i64 %threads, i64 %epoch) nounwind {
entry:
  %tp = getelementptr i8, ptr %pool, i64 128
  %table = load ptr, ptr %tp
  %cp = getelementptr i8, ptr %pool, i64 136
  %count = load i64, ptr %cp
  %lp = getelementptr i8, ptr %pool, i64 144
  %claims = load ptr, ptr %lp
  %first = icmp eq i64 %tid, 0
  %low = and i64 %epoch, 4294967295
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %continue ]
  %claim = getelementptr [4 x i64], ptr %claims, i64 %i
  %done = getelementptr i8, ptr %claim, i64 8
  %chp = getelementptr i8, ptr %claim, i64 16
  %given = load i64, ptr %chp
  %serial = icmp eq i64 %given, 0
  %chunks = call i64 @llvm.umax.i64(i64 %given, i64 1)
  %ahead = mul i64 %tid, %chunks
  %start = udiv i64 %ahead, %threads
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count

  %e = getelementptr [4 x i64], ptr %table, i64 %i
  %fn = load ptr, ptr %e
  %ap = getelementptr i8, ptr %e, i64 8
  %args = load ptr, ptr %ap
  %np = getelementptr i8, ptr %e, i64 16
  %items = load i64, ptr %np
  br i1 %serial, label %alone, label %attempt
alone:
  br i1 %first, label %own, label %follow
own:
  call void %fn(ptr %args, i64 0, i64 %items)
  store atomic i64 1, ptr %done release, align 8
  br label %continue
follow:
  br i1 %more, label %peek, label %over
peek:
  %np1 = getelementptr i8, ptr %chp, i64 32
  %then = load i64, ptr %np1
  %again = icmp eq i64 %then, 0
  br i1 %again, label %continue, label %wait
attempt:
  %a = phi i64 [ 0, %body ], [ %a, %lost ], [ %a1, %passed ]
  %at = add i64 %start, %a
  %chunk = urem i64 %at, %chunks
  %bit = shl i64 1, %chunk
  %word = load atomic i64, ptr %claim acquire, align 8
  %tag = lshr i64 %word, 32
  %mine = icmp eq i64 %tag, %low
  br i1 %mine, label %look, label %over
look:
  %taken = and i64 %word, %bit
  %free = icmp eq i64 %taken, 0
  br i1 %free, label %try, label %passed
try:
  %marked = or i64 %word, %bit
  %swap = cmpxchg ptr %claim, i64 %word, i64 %marked acq_rel acquire
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %work, label %lost
lost:
  br label %attempt
work:
  %after = add i64 %chunk, 1
  %lo = mul i64 %items, %chunk
  %b = udiv i64 %lo, %chunks
  %hi = mul i64 %items, %after
  %f = udiv i64 %hi, %chunks
  %some = icmp slt i64 %b, %f
  br i1 %some, label %call, label %finished
call:
  call void %fn(ptr %args, i64 %b, i64 %f)
  br label %finished
finished:
  %old = atomicrmw add ptr %done, i64 1 acq_rel
  br label %passed
passed:
  %a1 = add i64 %a, 1
  %left = icmp slt i64 %a1, %chunks
  br i1 %left, label %attempt, label %wait
wait:
  %spins = phi i64 [ 0, %peek ], [ 0, %passed ], [ %spins1, %pause ], [ 0, %yield ]
  %now = load atomic i64, ptr %done acquire, align 8
  %all = icmp sge i64 %now, %chunks
  br i1 %all, label %continue, label %still
still:
  %current = load atomic i64, ptr %pool acquire, align 8
  %same = icmp eq i64 %current, %epoch
  %spins1 = add i64 %spins, 1
  %long = icmp sgt i64 %spins1, 4000
  br i1 %same, label %patient, label %over
patient:
  br i1 %long, label %yield, label %pause
pause:
  call void @llvm.x86.sse2.pause()
  br label %wait
yield:
  %ignored = call i32 @sched_yield()
  br label %wait
continue:
  br i1 %more, label %body, label %over
over:
  ret void
}

define void @join(ptr %pool, i64 %tid, i64 %threads) nounwind {
  %epoch = load atomic i64, ptr %pool acquire, align 8
  call void @share(ptr %pool, i64 %tid, i64 %threads, i64 %epoch)
  ret void
}
