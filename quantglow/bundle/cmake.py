"""The CMakeLists.txt of a bundle: a library, and its example."""

from __future__ import annotations

from quantglow.bundle.contents import Contents

CMAKE_FIRST_LINE = "# add_subdirectory() and target_link_libraries(program {}) add it to a program."
"""How every ``CMakeLists.txt`` of a bundle begins, with the bundle's name."""


def cmake_lists(bundle: Contents) -> str:
    """The text of ``CMakeLists.txt``: target ``NAME``, and ``NAME_example`` at the top level."""
    name = bundle.name
    objects = [source for source in bundle.sources if source.endswith(".o")]
    return "\n".join(
        [
            CMAKE_FIRST_LINE.format(name),
            "cmake_minimum_required(VERSION 3.13)",
            f"project({name} C)",
            "",
            f"add_library({name} STATIC {' '.join(bundle.sources)})",
            f"set_source_files_properties({' '.join(objects)} PROPERTIES EXTERNAL_OBJECT TRUE)",
            f"set_target_properties({name} PROPERTIES LINKER_LANGUAGE C)",
            f'target_include_directories({name} PUBLIC "${{CMAKE_CURRENT_SOURCE_DIR}}")',
            *([f"target_link_libraries({name} PUBLIC m)"] if bundle.needs.libm else []),
            *(threads(name) if bundle.has_pool else []),
            "",
            "if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)",
            f"  add_executable({name}_example main.c)",
            f"  target_link_libraries({name}_example {name})",
            "endif()",
            "",
        ]
    )


def threads(name: str) -> list[str]:
    """Lines that link the system's threads."""
    return [
        "set(THREADS_PREFER_PTHREAD_FLAG ON)",
        "find_package(Threads REQUIRED)",
        f"target_link_libraries({name} PUBLIC Threads::Threads)",
    ]
