# The command-line tool: build/<preset>/dsrows.
file(GLOB dsr_tool_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/*.c)
if(dsr_tool_sources)
    pkg_check_modules(jansson REQUIRED IMPORTED_TARGET jansson)
    add_executable(dsrows_cli ${dsr_tool_sources})
    set_target_properties(dsrows_cli PROPERTIES
        OUTPUT_NAME dsrows RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
    target_link_libraries(dsrows_cli PRIVATE dsrows_static dsrows_reference dsrows_flags PkgConfig::jansson m)
endif()
