find_program(dsr_cxx_compiler NAMES c++ g++ clang++)
if(dsr_cxx_compiler AND NOT CMAKE_CROSSCOMPILING)
    dsr_add_test_case(api.headers quick api ${PROJECT_SOURCE_DIR}/tests/api/test_headers
        ${CMAKE_C_COMPILER} ${dsr_cxx_compiler} ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
endif()
