# Tests. Every tests/<area>/test_<name>.c is one cmocka program: target <area>_test_<name>, CTest test <area>.<name>.
#   label quick: every test but those of label full
#   label full:  tests/<area>/test_<name>_full.c
#   label <area>
# Exit 77 means skipped. A directory may add to this in its own tests.cmake.
pkg_check_modules(cmocka REQUIRED IMPORTED_TARGET cmocka)

file(GLOB dsr_support_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/*.c)
add_library(dsrows_test INTERFACE)
target_include_directories(dsrows_test INTERFACE ${PROJECT_SOURCE_DIR}/tests/support)
target_compile_definitions(dsrows_test INTERFACE DSR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
if(dsr_support_sources)
    add_library(dsrows_test_support STATIC ${dsr_support_sources})
    target_link_libraries(dsrows_test_support PUBLIC dsrows_static dsrows_reference dsrows_build PkgConfig::cmocka)
    target_link_libraries(dsrows_test INTERFACE dsrows_test_support)
endif()
target_link_libraries(dsrows_test INTERFACE dsrows_static dsrows_reference dsrows_build PkgConfig::cmocka)

function(dsr_add_test_case test_name label area)
    add_test(NAME ${test_name} COMMAND ${ARGN})
    set_tests_properties(${test_name} PROPERTIES LABELS "${label};${area}" SKIP_RETURN_CODE 77 TIMEOUT 600)
endfunction()

file(GLOB dsr_test_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*/test_*.c)
foreach(source IN LISTS dsr_test_sources)
    get_filename_component(name ${source} NAME_WE)
    get_filename_component(area ${source} DIRECTORY)
    get_filename_component(area ${area} NAME)
    string(REGEX REPLACE "^test_" "" short ${name})
    set(target ${area}_${name})
    add_executable(${target} ${source})
    target_link_libraries(${target} PRIVATE dsrows_test)
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    if(short MATCHES "_full$")
        dsr_add_test_case(${area}.${short} full ${area} ${target})
    else()
        dsr_add_test_case(${area}.${short} quick ${area} ${target})
    endif()
endforeach()

file(GLOB dsr_test_additions CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*/tests.cmake)
foreach(addition IN LISTS dsr_test_additions)
    include(${addition})
endforeach()
