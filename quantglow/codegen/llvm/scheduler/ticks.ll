; The clock of traces.
<declarations>define i64 @ticks() nounwind {
  %now = <clock>
  ret i64 %now
}
