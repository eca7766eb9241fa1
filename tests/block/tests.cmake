# What the tests of the attention block share. The recorded layers are read with the tool's reader.
pkg_check_modules(jansson REQUIRED IMPORTED_TARGET jansson)
add_library(block_support STATIC
    ${CMAKE_CURRENT_LIST_DIR}/faults.c
    ${CMAKE_CURRENT_LIST_DIR}/recorded.c
    ${CMAKE_CURRENT_LIST_DIR}/schedules.c
    ${CMAKE_CURRENT_LIST_DIR}/synthetic_layer.c
    ${PROJECT_SOURCE_DIR}/tools/safetensors.c ${PROJECT_SOURCE_DIR}/tools/out_file.c)
target_include_directories(block_support PUBLIC ${CMAKE_CURRENT_LIST_DIR} ${PROJECT_SOURCE_DIR}/tools)
target_link_libraries(block_support PUBLIC dsrows_test PkgConfig::jansson)
if(CMAKE_CROSSCOMPILING)
    # An emulator takes a hundred times as long for a token: fewer of everything.
    target_compile_definitions(block_support PUBLIC DSR_TEST_EMULATED)
endif()
foreach(source IN LISTS dsr_test_sources)
    if(source MATCHES "/tests/block/(test_[a-z0-9_]+)\\.c$")
        target_link_libraries(block_${CMAKE_MATCH_1} PRIVATE block_support)
    endif()
endforeach()

# Not a test: the speed of joint steps.
add_executable(bench_attention_block ${PROJECT_SOURCE_DIR}/bench/bench_attention_block.c)
target_link_libraries(bench_attention_block PRIVATE block_support)
