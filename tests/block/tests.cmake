# What the tests of the attention block share.
add_library(block_support STATIC
    ${CMAKE_CURRENT_LIST_DIR}/synthetic_layer.c ${CMAKE_CURRENT_LIST_DIR}/schedules.c
    ${CMAKE_CURRENT_LIST_DIR}/faults.c)
target_link_libraries(block_support PUBLIC dsrows_test)
foreach(source IN LISTS dsr_test_sources)
    if(source MATCHES "/tests/block/(test_[a-z0-9_]+)\\.c$")
        target_link_libraries(block_${CMAKE_MATCH_1} PRIVATE block_support)
    endif()
endforeach()
