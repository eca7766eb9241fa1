# The command-line tool: build/<preset>/dsrows.
find_package(PkgConfig REQUIRED)
pkg_check_modules(jansson REQUIRED IMPORTED_TARGET jansson)

# `dsrows verify` runs the tests' case generator against the golden hashes, which the build puts into the program.
set(dsr_golden_file ${PROJECT_SOURCE_DIR}/tests/golden/bits.txt)
file(STRINGS ${dsr_golden_file} dsr_golden_lines)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${dsr_golden_file})
list(TRANSFORM dsr_golden_lines REPLACE "(.+)" "    \"\\1\",\n" OUTPUT_VARIABLE dsr_golden_strings)
list(JOIN dsr_golden_strings "" dsr_golden_strings)
configure_file(cmake/golden_bits.c.in ${PROJECT_BINARY_DIR}/golden_bits.c @ONLY)

file(GLOB dsr_tool_sources CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/tools/*.c
    ${PROJECT_SOURCE_DIR}/tests/support/bit_*.c ${PROJECT_SOURCE_DIR}/tests/support/case_*.c)
add_executable(dsrows_cli
    ${dsr_tool_sources}
    ${PROJECT_BINARY_DIR}/golden_bits.c
    ${PROJECT_SOURCE_DIR}/tests/support/caller_fp_mode.c
    ${PROJECT_SOURCE_DIR}/tests/support/guarded_memory.c
    ${PROJECT_SOURCE_DIR}/tests/support/layer_model.c
    ${PROJECT_SOURCE_DIR}/tests/support/near_tie.c
    ${PROJECT_SOURCE_DIR}/tests/support/patterns.c
    ${PROJECT_SOURCE_DIR}/tests/support/random.c)
target_include_directories(dsrows_cli PRIVATE ${PROJECT_SOURCE_DIR}/tools ${PROJECT_SOURCE_DIR}/tests/support)
set_target_properties(dsrows_cli PROPERTIES OUTPUT_NAME dsrows RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
target_link_libraries(dsrows_cli PRIVATE dsrows_static dsrows_reference dsrows_flags PkgConfig::jansson m)
