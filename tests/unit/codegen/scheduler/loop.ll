

define internal void @run_alone(ptr %table, i64 %count) nounwind {
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %body, label %done
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]

  %e = getelementptr [4 x i64], ptr %table, i64 %i
  %fn = load ptr, ptr %e
  %ap = getelementptr i8, ptr %e, i64 8
  %args = load ptr, ptr %ap
  %np = getelementptr i8, ptr %e, i64 16
  %items = load i64, ptr %np
  call void %fn(ptr %args, i64 0, i64 %items)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %body, label %done
done:
  ret void
}

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
  %moving = getelementptr i8, ptr %args, i64 40
  br label %trip
trip:
  %t = phi i64 [ 0, %entry ], [ %t1, %run ]
  %trips = load atomic i64, ptr %args monotonic, align 8
  %left = icmp slt i64 %t, %trips
  br i1 %left, label %ask, label %done
ask:
  br i1 %endless, label %move, label %look
look:
  %byte = load i8, ptr %condition
  %holds = icmp ne i8 %byte, 0
  br i1 %holds, label %move, label %done
move:
  %m = phi i64 [ 0, %ask ], [ 0, %look ], [ %m1, %store ]
  %some = icmp slt i64 %m, %count
  br i1 %some, label %store, label %run
store:
  %e = getelementptr [3 x i64], ptr %moving, i64 %m
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
