; A kernel whose items are the pieces of a batch: each thread that comes takes a slot, which is a
; table with its arguments, runs it once for each of its pieces, and gives the slot back.
<run_alone>
declare i64 @llvm.cttz.i64(i64, i1)

define void @run_pieces(ptr %batch, i64 %begin, i64 %end) nounwind {
entry:
  %sp = getelementptr i64, ptr %batch, i64 <batch.slots>
  %slots = load ptr, ptr %sp
  %cp = getelementptr i64, ptr %batch, i64 <batch.calls>
  %calls = load i64, ptr %cp
  %mp = getelementptr i64, ptr %batch, i64 <batch.moving>
  %moving = load ptr, ptr %mp
  %np = getelementptr i64, ptr %batch, i64 <batch.count>
  %count = load i64, ptr %np
  %busy = getelementptr i64, ptr %batch, i64 <batch.busy>
  br label %attempt
; The lowest slot that is free.  There are as many slots as threads that can be at work at one time,
; so there is one.
attempt:
  %taken = load atomic i64, ptr %busy acquire, align 8
  %free = xor i64 %taken, -1
  %slot = call i64 @llvm.cttz.i64(i64 %free, i1 true)
  %bit = shl i64 1, %slot
  %marked = or i64 %taken, %bit
  %swap = cmpxchg ptr %busy, i64 %taken, i64 %marked acq_rel acquire
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %own, label %attempt
own:
  %tp = getelementptr [2 x i64], ptr %slots, i64 %slot
  %table = load ptr, ptr %tp
  %ap = getelementptr i8, ptr %tp, i64 8
  %arguments = load ptr, ptr %ap
  br label %piece
piece:
  %p = phi i64 [ %begin, %own ], [ %p1, %call ]
  %some_piece = icmp slt i64 %p, %end
  br i1 %some_piece, label %move, label %done
move:
  %m = phi i64 [ 0, %piece ], [ %m1, %store ]
  %some_move = icmp slt i64 %m, %count
  br i1 %some_move, label %store, label %call
store:
  %e = getelementptr [3 x i64], ptr %moving, i64 %m
  %position = load i64, ptr %e
  %bp = getelementptr i8, ptr %e, i64 8
  %base = load i64, ptr %bp
  %dp = getelementptr i8, ptr %e, i64 16
  %stride = load i64, ptr %dp
  %distance = mul i64 %p, %stride
  %address = add i64 %base, %distance
  %pointer = getelementptr i64, ptr %arguments, i64 %position
  store i64 %address, ptr %pointer
  %m1 = add i64 %m, 1
  br label %move
call:
  call void @run_alone(ptr %table, i64 %calls)
  %p1 = add i64 %p, 1
  br label %piece
done:
  ; Release: the next thread on this slot finds its memory as this one left it.
  %kept = xor i64 %bit, -1
  %before = atomicrmw and ptr %busy, i64 %kept acq_rel
  ret void
}
