; Lets all workers end: the flag first, then a new epoch, which makes them look at it.
define void @shut(ptr %pool) nounwind {
  %qp = getelementptr i8, ptr %pool, i64 <pool.stop>
  store atomic i64 1, ptr %qp seq_cst, align 8
  %old = atomicrmw add ptr %pool, i64 1 seq_cst
  <wake>
  ret void
}
