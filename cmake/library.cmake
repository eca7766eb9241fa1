# The library (shared and static) and the reference.

configure_file(include/dsrows/version.h.in ${PROJECT_BINARY_DIR}/include/dsrows/version.h @ONLY)

# ---- instruction sets: a level is a set of kernel objects ------------------------------------------------------
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(dsr_levels scalar avx2 avx512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(dsr_levels scalar neon)
else()
    set(dsr_levels scalar)
endif()
set(dsr_flags_avx2 -mavx2 -mfma)
set(dsr_flags_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma)
# Units beside AVX-512: dot products of BF16 for the kernels in row/, of bytes for those in exact/.
set(dsr_row_units)
set(dsr_exact_units)
if("avx512" IN_LIST dsr_levels)
    set(dsr_row_units avx512bf16 amxbf16)
    set(dsr_exact_units avx512vnni amxint8)
endif()
set(dsr_flags_avx512bf16 ${dsr_flags_avx512} -mavx512bf16)
set(dsr_flags_amxbf16 ${dsr_flags_avx512} -mamx-tile -mamx-bf16)
set(dsr_flags_avx512vnni ${dsr_flags_avx512} -mavx512vnni)
set(dsr_flags_amxint8 ${dsr_flags_avx512} -mamx-tile -mamx-int8)

add_library(dsrows_build INTERFACE)
target_include_directories(dsrows_build INTERFACE
    ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
target_link_libraries(dsrows_build INTERFACE dsrows_flags Threads::Threads)
foreach(level IN LISTS dsr_levels dsr_row_units dsr_exact_units)
    string(TOUPPER ${level} upper)
    target_compile_definitions(dsrows_build INTERFACE DSRI_HAVE_${upper}=1)
endforeach()

file(GLOB dsr_sources CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/src/*.c ${PROJECT_SOURCE_DIR}/src/core/*.c
    ${PROJECT_SOURCE_DIR}/src/ops/*.c ${PROJECT_SOURCE_DIR}/src/block/*.c ${PROJECT_SOURCE_DIR}/src/cpu/*.c)
file(GLOB dsr_kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cpu/kernels/*.c)

add_library(dsrows_objects OBJECT ${dsr_sources})
target_link_libraries(dsrows_objects PRIVATE dsrows_build)
set(dsr_objects $<TARGET_OBJECTS:dsrows_objects>)
if(dsr_kernel_sources)
    foreach(level IN LISTS dsr_levels)
        add_library(dsrows_kernels_${level} OBJECT ${dsr_kernel_sources})
        target_link_libraries(dsrows_kernels_${level} PRIVATE dsrows_build)
        target_compile_definitions(dsrows_kernels_${level} PRIVATE DSRI_ISA=${level})
        target_compile_options(dsrows_kernels_${level} PRIVATE ${dsr_flags_${level}})
        list(APPEND dsr_objects $<TARGET_OBJECTS:dsrows_kernels_${level}>)
    endforeach()
endif()
file(GLOB dsr_row_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cpu/kernels/row/*.c)
file(GLOB dsr_exact_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cpu/kernels/exact/*.c)
foreach(kind row exact)
    string(TOUPPER ${kind} upper)
    foreach(unit IN LISTS dsr_${kind}_units)
        add_library(dsrows_kernels_${unit} OBJECT ${dsr_${kind}_sources})
        target_link_libraries(dsrows_kernels_${unit} PRIVATE dsrows_build)
        target_compile_definitions(dsrows_kernels_${unit} PRIVATE DSRI_ISA=avx512 DSRI_${upper}_UNIT=${unit})
        target_compile_options(dsrows_kernels_${unit} PRIVATE ${dsr_flags_${unit}})
        list(APPEND dsr_objects $<TARGET_OBJECTS:dsrows_kernels_${unit}>)
    endforeach()
endforeach()

include(${CMAKE_CURRENT_LIST_DIR}/cuda.cmake)

function(dsr_configure_library target)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME dsrows LINKER_LANGUAGE C)
    target_include_directories(${target} PUBLIC
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
        $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    # m: fmaf of the scalar level.
    target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS} m $<BUILD_INTERFACE:dsrows_flags>)
endfunction()

set(dsr_version_script ${PROJECT_SOURCE_DIR}/cmake/dsrows.map)
add_library(dsrows SHARED ${dsr_objects})
dsr_configure_library(dsrows)
set_target_properties(dsrows PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${dsr_version_script})
target_link_options(dsrows PRIVATE -Wl,--version-script=${dsr_version_script})
if(NOT DSR_SANITIZE)
    target_link_options(dsrows PRIVATE -Wl,--no-undefined)
endif()
add_library(dsrows::dsrows ALIAS dsrows)

add_library(dsrows_static STATIC ${dsr_objects})
dsr_configure_library(dsrows_static)
target_compile_definitions(dsrows_static INTERFACE DSROWS_STATIC)
add_library(dsrows::dsrows_static ALIAS dsrows_static)

# ---- the reference: knows nothing of the library -----------------------------------------------------------------
file(GLOB dsr_reference_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/reference/*.c)
add_library(dsrows_reference STATIC ${dsr_reference_sources})
target_include_directories(dsrows_reference PUBLIC ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(dsrows_reference PRIVATE dsrows_flags PUBLIC m)
target_compile_options(dsrows_reference PRIVATE ${dsr_no_vectoriser})
