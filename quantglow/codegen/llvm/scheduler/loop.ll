; A kernel that walks the table of a loop's body once in each trip, on one thread.
;
; Its arguments: trips, the first row of the body's table, the rows, the moving pointers, the
; address of a condition or 0; then the moving pointers, three words each: the address in the first
; trip, bytes to the next trip, and where the kernel reads the pointer.
<run_alone>
define void @kernel(ptr %args, i64 %begin, i64 %end) nounwind {
entry:
  %tp = getelementptr i8, ptr %args, i64 8
  %table = load ptr, ptr %tp
  %rp = getelementptr i8, ptr %args, i64 16
  %rows = load i64, ptr %rp
  %mp = getelementptr i8, ptr %args, i64 24
  %count = load i64, ptr %mp
  %cp = getelementptr i8, ptr %args, i64 32
  %condition = load ptr, ptr %cp
  %endless = icmp eq ptr %condition, null
  %moving = getelementptr i8, ptr %args, i64 <loop.nbytes>
  br label %trip
trip:
  %t = phi i64 [ 0, %entry ], [ %t1, %run ]
  ; Read anew in each trip: another thread ends the loop by a zero here.  Nothing else is handed
  ; over with it, so it needs no order (monotonic), only to be read whole.
  %trips = load atomic i64, ptr %args monotonic, align 8
  %left = icmp slt i64 %t, %trips
  br i1 %left, label %ask, label %done
ask:
  br i1 %endless, label %move, label %look
; The condition is a bool that the trip before has computed: one byte, true unless 0.
look:
  %byte = load i8, ptr %condition
  %holds = icmp ne i8 %byte, 0
  br i1 %holds, label %move, label %done
; Each moving pointer is computed from its address in the first trip, not from that of the trip
; before: so a loop that ended early, or is run again, needs no reset.
move:
  %m = phi i64 [ 0, %ask ], [ 0, %look ], [ %m1, %store ]
  %some = icmp slt i64 %m, %count
  br i1 %some, label %store, label %run
store:
  %e = getelementptr [<moving.words> x i64], ptr %moving, i64 %m
  %base = load i64, ptr %e
  %sp = getelementptr i8, ptr %e, i64 8
  %stride = load i64, ptr %sp
  %pp = getelementptr i8, ptr %e, i64 16
  %place = load ptr, ptr %pp
  %distance = mul i64 %t, %stride
  %address = add i64 %base, %distance
  store i64 %address, ptr %place
  %m1 = add i64 %m, 1
  br label %move
run:
  call void @run_alone(ptr %table, i64 %rows)
  %t1 = add i64 %t, 1
  br label %trip
done:
  ret void
}
