; Loads entry %i of %table: the kernel %fn, its %args and %items.  The fourth word, the number of
; chunks, is read by run_shared only, which copies it to the claims of the inference.
  %e = getelementptr [4 x i64], ptr %table, i64 %i
  %fn = load ptr, ptr %e
  %ap = getelementptr i8, ptr %e, i64 8
  %args = load ptr, ptr %ap
  %np = getelementptr i8, ptr %e, i64 16
  %items = load i64, ptr %np
