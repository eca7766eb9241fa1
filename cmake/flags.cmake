# Flags of every object of this project: dsrows_flags carries them.
#
# -ffp-contract=off is part of the definition of the bits (docs/numerics.md): a compiler that fuses a product and a sum on
# its own changes results. -fno-math-errno lets fmaf and sqrtf become single instructions.
add_library(dsrows_flags INTERFACE)
target_compile_options(dsrows_flags INTERFACE
    -ffp-contract=off -fno-math-errno -fno-strict-aliasing
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wvla)
if(CMAKE_C_COMPILER_ID MATCHES "Clang")
    # Clang asks for a declaration of every function in an object; the reference and tests keep helpers static anyway.
    target_compile_options(dsrows_flags INTERFACE -Wmissing-prototypes)
endif()
if(DSR_WERROR)
    target_compile_options(dsrows_flags INTERFACE -Werror)
endif()
if(DSR_SANITIZE)
    target_compile_options(dsrows_flags INTERFACE
        -fsanitize=${DSR_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(dsrows_flags INTERFACE -fsanitize=${DSR_SANITIZE})
endif()
target_compile_definitions(dsrows_flags INTERFACE _POSIX_C_SOURCE=200809L)

# gcc 12 for aarch64 stops with an internal error in its vectoriser on a double reduction: for code that adds up doubles.
set(dsr_no_vectoriser)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(dsr_no_vectoriser -fno-tree-vectorize)
endif()
