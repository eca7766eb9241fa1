# The CUDA back end: device code compiled by nvcc to cubins and PTX, joined to one fatbin and embedded. Building needs nvcc;
# running needs only the driver. Without nvcc the library builds without it and says so.

set(DSR_CUDA_ARCHS "90a;80" CACHE STRING "Compute capabilities to embed machine code for; the first also as PTX, for later devices")

set(dsr_has_cuda OFF)
if(NOT DSR_CUDA STREQUAL "OFF")
    find_program(DSR_NVCC nvcc HINTS /usr/local/cuda/bin $ENV{CUDA_HOME}/bin)
    if(DSR_NVCC)
        set(dsr_has_cuda ON)
    elseif(DSR_CUDA STREQUAL "ON")
        message(FATAL_ERROR "DSR_CUDA is ON, but no nvcc was found")
    endif()
endif()
if(CMAKE_CROSSCOMPILING)
    set(dsr_has_cuda OFF)
endif()

if(dsr_has_cuda)
    message(STATUS "CUDA back end: built in (${DSR_NVCC}, compute capabilities ${DSR_CUDA_ARCHS})")
    enable_language(ASM)
    file(GLOB dsr_cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*.c)
    file(GLOB dsr_cuda_kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/kernels/*.cu)
    file(GLOB dsr_cuda_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/kernels/*.cuh)
    # PTX of 90a would be for 9.0 alone.
    list(GET DSR_CUDA_ARCHS 0 dsr_cuda_ptx)
    string(REPLACE "a" "" dsr_cuda_ptx "${dsr_cuda_ptx}")
    # No contraction, no flush to zero, exact division and square root: the bits depend on it.
    set(dsr_nvcc_flags -std=c++17 -O3 --fmad=false -ftz=false -prec-div=true -prec-sqrt=true -I${PROJECT_SOURCE_DIR}/src)
    set(dsr_cuda_dir ${PROJECT_BINARY_DIR}/cuda)
    file(MAKE_DIRECTORY ${dsr_cuda_dir})
    # One source includes all kernels: one module, and one image for each capability.
    set(includes "")
    foreach(kernel IN LISTS dsr_cuda_kernels)
        file(RELATIVE_PATH relative ${PROJECT_SOURCE_DIR}/src ${kernel})
        string(APPEND includes "#include \"${relative}\"\n")
    endforeach()
    file(CONFIGURE OUTPUT ${dsr_cuda_dir}/all_kernels.cu CONTENT "${includes}" @ONLY)
    set(gencode "")
    foreach(arch IN LISTS DSR_CUDA_ARCHS)
        list(APPEND gencode -gencode arch=compute_${arch},code=sm_${arch})
    endforeach()
    list(APPEND gencode -gencode arch=compute_${dsr_cuda_ptx},code=compute_${dsr_cuda_ptx})
    set(DSR_CUDA_FATBIN ${dsr_cuda_dir}/kernels.fatbin)
    add_custom_command(OUTPUT ${DSR_CUDA_FATBIN}
        COMMAND ${DSR_NVCC} ${dsr_nvcc_flags} ${gencode} -fatbin -o ${DSR_CUDA_FATBIN} ${dsr_cuda_dir}/all_kernels.cu
        DEPENDS ${dsr_cuda_kernels} ${dsr_cuda_headers} ${dsr_cuda_dir}/all_kernels.cu
            ${PROJECT_SOURCE_DIR}/src/cuda/cuda_bundle.h
            ${PROJECT_SOURCE_DIR}/src/ops/op_plans.h ${PROJECT_SOURCE_DIR}/src/ops/sincos_fixed.h
            ${PROJECT_SOURCE_DIR}/src/ops/attention_workspace.h ${PROJECT_SOURCE_DIR}/src/ops/indexer_workspace.h
            ${PROJECT_SOURCE_DIR}/src/ops/projection_layout.h
        COMMENT "Compiling the CUDA kernels" VERBATIM)
    configure_file(${PROJECT_SOURCE_DIR}/src/cuda/cuda_image.S.in ${dsr_cuda_dir}/cuda_image.S @ONLY)
    set_source_files_properties(${dsr_cuda_dir}/cuda_image.S PROPERTIES OBJECT_DEPENDS ${DSR_CUDA_FATBIN})
    target_compile_definitions(dsrows_build INTERFACE DSRI_HAVE_CUDA=1)
    add_library(dsrows_cuda_objects OBJECT ${dsr_cuda_sources} ${dsr_cuda_dir}/cuda_image.S ${DSR_CUDA_FATBIN})
    target_link_libraries(dsrows_cuda_objects PRIVATE dsrows_build)
    list(APPEND dsr_objects $<TARGET_OBJECTS:dsrows_cuda_objects>)
else()
    message(STATUS "CUDA back end: not built (DSR_CUDA is ${DSR_CUDA}, nvcc: ${DSR_NVCC})")
endif()

# The bit matrix on a device, and the timings: plain programs, since a machine with a device may have no test library. They
# are built by target dsrows_gpu_programs, or with the tests.
function(dsr_add_gpu_programs)
    file(GLOB support CONFIGURE_DEPENDS
        ${PROJECT_SOURCE_DIR}/tests/support/bit_*.c ${PROJECT_SOURCE_DIR}/tests/support/case_*.c)
    list(APPEND support ${PROJECT_SOURCE_DIR}/tests/support/caller_fp_mode.c
        ${PROJECT_SOURCE_DIR}/tests/support/guarded_memory.c ${PROJECT_SOURCE_DIR}/tests/support/patterns.c
        ${PROJECT_SOURCE_DIR}/tests/support/random.c)
    add_executable(dsrows_gpu_check ${PROJECT_SOURCE_DIR}/tests/gpu/gpu_check.c ${support})
    target_include_directories(dsrows_gpu_check PRIVATE ${PROJECT_SOURCE_DIR}/tests/support)
    target_link_libraries(dsrows_gpu_check PRIVATE dsrows_static dsrows_reference dsrows_flags m)
    add_executable(dsrows_gpu_block ${PROJECT_SOURCE_DIR}/tests/gpu/gpu_block.c
        ${PROJECT_SOURCE_DIR}/tests/block/synthetic_layer.c
        ${PROJECT_SOURCE_DIR}/tests/support/patterns.c ${PROJECT_SOURCE_DIR}/tests/support/random.c)
    target_include_directories(dsrows_gpu_block PRIVATE ${PROJECT_SOURCE_DIR}/tests/support)
    target_link_libraries(dsrows_gpu_block PRIVATE dsrows_static dsrows_flags m)
    add_executable(dsrows_gpu_callers ${PROJECT_SOURCE_DIR}/tests/gpu/gpu_callers.c)
    target_link_libraries(dsrows_gpu_callers PRIVATE dsrows_static dsrows_flags ${CMAKE_DL_LIBS} m)
    add_executable(dsrows_gpu_step ${PROJECT_SOURCE_DIR}/tests/gpu/gpu_step.c)
    target_link_libraries(dsrows_gpu_step PRIVATE dsrows_static dsrows_flags m)
    add_executable(dsrows_gpu_select ${PROJECT_SOURCE_DIR}/tests/gpu/gpu_select.c)
    target_include_directories(dsrows_gpu_select PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(dsrows_gpu_select PRIVATE dsrows_static dsrows_reference dsrows_flags m)
    add_executable(dsrows_gpu_bench ${PROJECT_SOURCE_DIR}/bench/gpu_bench.c)
    target_link_libraries(dsrows_gpu_bench PRIVATE dsrows_static dsrows_flags m)
    add_executable(dsrows_gpu_ceilings ${PROJECT_SOURCE_DIR}/bench/gpu_ceilings.c)
    target_link_libraries(dsrows_gpu_ceilings PRIVATE dsrows_static dsrows_flags m)
    # Kernels that these programs bring as callers do.
    set(gencode "")
    foreach(arch IN LISTS DSR_CUDA_ARCHS)
        list(APPEND gencode -gencode arch=compute_${arch},code=sm_${arch})
    endforeach()
    set(fatbins "")
    foreach(source tests/gpu/scale.cu bench/gpu_ceilings.cu)
        get_filename_component(name ${source} NAME_WE)
        set(fatbin ${PROJECT_BINARY_DIR}/cuda/${name}.fatbin)
        add_custom_command(OUTPUT ${fatbin}
            COMMAND ${DSR_NVCC} ${gencode} -fatbin -o ${fatbin} ${PROJECT_SOURCE_DIR}/${source}
            DEPENDS ${PROJECT_SOURCE_DIR}/${source} COMMENT "Compiling ${source}" VERBATIM)
        list(APPEND fatbins ${fatbin})
    endforeach()
    set(programs dsrows_gpu_check dsrows_gpu_block dsrows_gpu_callers dsrows_gpu_step dsrows_gpu_select dsrows_gpu_bench
        dsrows_gpu_ceilings)
    set_target_properties(${programs} PROPERTIES EXCLUDE_FROM_ALL ON)
    add_custom_target(dsrows_gpu_programs DEPENDS ${fatbins} ${programs})
    set(dsr_gpu_programs ${programs} PARENT_SCOPE)
endfunction()
