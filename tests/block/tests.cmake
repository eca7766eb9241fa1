# What the tests of the attention block share.
add_library(block_support STATIC
    ${CMAKE_CURRENT_LIST_DIR}/synthetic_layer.c ${CMAKE_CURRENT_LIST_DIR}/schedules.c)
target_link_libraries(block_support PUBLIC dsrows_test)
foreach(name IN ITEMS schedules schedules_full)
    target_link_libraries(block_test_${name} PRIVATE block_support)
endforeach()
