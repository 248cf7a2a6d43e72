"""From IR text to the address of a function.

``compiler`` has LLVM make an object of a text; ``cache`` keeps objects on disk, in a
``private_folder``, by the names that ``identity`` gives to kernel calls; ``linker`` makes objects
executable without LLVM; ``library`` puts it together: kernels compiled and loaded, each once.
``host`` names this processor.
"""
