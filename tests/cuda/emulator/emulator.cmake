# A driver library that runs the kernels on the CPU: fake_cuda.c and the kernels compiled for the host. Programs load it
# by DSR_CUDA_DRIVER. For x86-64 with a C++ compiler; elsewhere it is left out, and under sanitizers, which know nothing of
# its threads' stacks. Built by name, or with the tests.
include(CheckLanguage)
check_language(CXX)
if(DSR_SANITIZE OR NOT CMAKE_CXX_COMPILER OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    message(STATUS "Emulator of CUDA kernels: not built (it needs a C++ compiler and x86-64, and no sanitizers)")
    return()
endif()
enable_language(CXX)

set(dsr_emulator_dir ${PROJECT_SOURCE_DIR}/tests/cuda/emulator)
set(dsr_kernel_list ${dsr_cuda_dir}/kernel_list.inc)
add_custom_command(OUTPUT ${dsr_kernel_list}
    COMMAND ${CMAKE_COMMAND} -DDIRECTORY=${PROJECT_SOURCE_DIR}/src/cuda/kernels -DOUTPUT=${dsr_kernel_list}
        -P ${dsr_emulator_dir}/list_kernels.cmake
    DEPENDS ${dsr_cuda_kernels} ${dsr_emulator_dir}/list_kernels.cmake
    COMMENT "Listing the CUDA kernels" VERBATIM)
# A driver library whose kernels are all_kernels.cu and kernel_list.inc of a directory. A checked one sees every access to
# memory too, and whether it is aligned, by the calls that the compiler makes for -fsanitize=thread,alignment, which the
# emulator answers itself.
function(dsr_add_emulated_driver library kernels_dir is_checked)
    add_library(${library} SHARED EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/cuda/fake_cuda.c ${dsr_emulator_dir}/checks.cpp
        ${dsr_emulator_dir}/emulator.cpp ${dsr_emulator_dir}/graph.cpp)
    add_library(${library}_kernels OBJECT EXCLUDE_FROM_ALL ${dsr_emulator_dir}/kernels.cpp)
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:${library}_kernels>)
    target_link_libraries(${library} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
    set_target_properties(${library} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    foreach(target ${library} ${library}_kernels)
        set_target_properties(${target} PROPERTIES
            CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden)
        target_compile_definitions(${target} PRIVATE _POSIX_C_SOURCE=200809L _GNU_SOURCE)
        target_include_directories(${target} PRIVATE ${dsr_emulator_dir} ${kernels_dir} ${PROJECT_SOURCE_DIR}/src)
        # The device's rules for the bits; optimised whatever the build type, since a matrix takes minutes without.
        target_compile_options(${target} PRIVATE -O2 -g -mavx2 -mfma -ffp-contract=off -fno-math-errno
            -fno-strict-aliasing $<$<CXX_COMPILER_ID:GNU>:-mtls-dialect=gnu2> -Wall -Wextra
            $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-pragmas -Wno-extra> $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)
    endforeach()
    if(is_checked)
        target_compile_definitions(${library} PRIVATE EMULATOR_CHECKS=1)
        target_compile_options(${library}_kernels PRIVATE -fsanitize=thread,alignment)
    endif()
endfunction()

add_custom_target(dsrows_kernel_list DEPENDS ${dsr_kernel_list})
dsr_add_emulated_driver(emulated_cuda ${dsr_cuda_dir} OFF)
dsr_add_emulated_driver(emulated_cuda_checked ${dsr_cuda_dir} ON)
dsr_add_emulated_driver(emulated_faults ${dsr_emulator_dir}/faults ON)
add_dependencies(emulated_cuda_kernels dsrows_kernel_list)
add_dependencies(emulated_cuda_checked_kernels dsrows_kernel_list)
