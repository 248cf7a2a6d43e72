; Walks a table on the calling thread: each kernel does all of its items, in the order of the table.
; There is nothing to wait for, so chunks are not looked at.
define void @run_alone(ptr %table, i64 %count) nounwind {
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %body, label %done
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
<entry>
  call void %fn(ptr %args, i64 0, i64 %items)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %body, label %done
done:
  ret void
}
