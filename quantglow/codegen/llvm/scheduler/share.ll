; Takes part in an inference until it is over.
;
; Every thread walks the whole table.  The items of an entry are cut into chunks, which are bits of
; a word of claims; a thread claims those from its own share on first, then any that nobody has
; claimed, so a worker that the system does not run holds nobody up: the others take its chunks.
; An entry begins when all chunks of the one before are done, which is the only barrier.
;
; A claim's word has the lower half of the inference's epoch in its upper half.  A worker that comes
; late, when run_shared has reset the words for another inference, finds another epoch there and
; goes back to waiting: its compare-and-exchange cannot succeed on a word of another epoch.
;
; Thread 0 does serial entries without claiming them.  The others follow the table and wait for the
; last of a row of such entries only, and for none at the end, after which nothing depends on it.
define internal void @share(ptr %pool, i64 %tid, i64 %threads, i64 %epoch) nounwind {
entry:
  %tp = getelementptr i8, ptr %pool, i64 <pool.table>
  %table = load ptr, ptr %tp
  %cp = getelementptr i8, ptr %pool, i64 <pool.count>
  %count = load i64, ptr %cp
  %lp = getelementptr i8, ptr %pool, i64 <pool.claims>
  %claims = load ptr, ptr %lp
  %first = icmp eq i64 %tid, 0
  %low = and i64 %epoch, 4294967295
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %continue ]
  %claim = getelementptr [<claim.words> x i64], ptr %claims, i64 %i
  %done = getelementptr i8, ptr %claim, i64 8
  %chp = getelementptr i8, ptr %claim, i64 16
  %given = load i64, ptr %chp
  %serial = icmp eq i64 %given, <serial>
  ; A serial entry has 0 chunks and is waited for as one chunk that thread 0 does.
  %chunks = call i64 @llvm.umax.i64(i64 %given, i64 1)
  ; Where the share of this thread begins: at the same part of each entry, whose data may still lie
  ; in its cache.
  %ahead = mul i64 %tid, %chunks
  %start = udiv i64 %ahead, %threads
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
<entry>
  br i1 %serial, label %alone, label %attempt
alone:
  br i1 %first, label %own, label %follow
own:
  call void %fn(ptr %args, i64 0, i64 %items)
  ; Release: who sees the 1 (acquire, below) sees what the kernel has written.
  store atomic i64 1, ptr %done release, align 8
  br label %continue
follow:
  br i1 %more, label %peek, label %over
; The next entry is serial, too: thread 0 will do both, so there is nothing to wait for in between.
peek:
  %np1 = getelementptr i8, ptr %chp, i64 <claim.nbytes>
  %then = load i64, ptr %np1
  %again = icmp eq i64 %then, <serial>
  br i1 %again, label %continue, label %wait
; A chunk: the one that is %a behind the beginning of this thread's share, around the end.
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
; Lost only if another thread has changed the word at this moment: then look at the chunk again.
try:
  %marked = or i64 %word, %bit
  %swap = cmpxchg ptr %claim, i64 %word, i64 %marked acq_rel acquire
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %work, label %lost
lost:
  br label %attempt
work:
  %after = add i64 %chunk, 1
  ; Items of chunk c of n: from items * c / n to items * (c + 1) / n, so sizes differ by one at
  ; most. With fewer items than chunks some are empty.
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
  ; Release what this chunk wrote; who reads the last count acquires what all chunks wrote.
  %old = atomicrmw add ptr %done, i64 1 acq_rel
  br label %passed
passed:
  %a1 = add i64 %a, 1
  %left = icmp slt i64 %a1, %chunks
  br i1 %left, label %attempt, label %wait
; All chunks of the entry are claimed: wait until all are done, unless the inference is over, which
; a new epoch tells.  After many pauses the time slice is given away: threads may outnumber cores,
; and the one that is waited for may need this core.
wait:
  %spins = phi i64 [ 0, %peek ], [ 0, %passed ], [ %spins1, %pause ], [ 0, %yield ]
  %now = load atomic i64, ptr %done acquire, align 8
  %all = icmp sge i64 %now, %chunks
  br i1 %all, label %continue, label %still
still:
  %current = load atomic i64, ptr %pool acquire, align 8
  %same = icmp eq i64 %current, %epoch
  %spins1 = add i64 %spins, 1
  %long = icmp sgt i64 %spins1, <yield_after>
  br i1 %same, label %patient, label %over
patient:
  br i1 %long, label %yield, label %pause
pause:
  <pause>
  br label %wait
yield:
  %ignored = call i32 @sched_yield()
  br label %wait
continue:
  br i1 %more, label %body, label %over
over:
  ret void
}
