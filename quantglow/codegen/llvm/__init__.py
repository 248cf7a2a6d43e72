"""Machine code through LLVM.  README.md has the guide."""
