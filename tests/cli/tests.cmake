# These run the command as a user would: environment variable DSROWS holds the command line that starts it. The reader of
# safetensors files is also tested on its own.
if(NOT TARGET dsrows_cli)
    return()
endif()
file(GLOB dsr_cli_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/test_*.c)
foreach(source IN LISTS dsr_cli_tests)
    get_filename_component(name ${source} NAME_WE)
    string(REGEX REPLACE "^test_" "" short ${name})
    target_sources(cli_${name} PRIVATE
        ${CMAKE_CURRENT_LIST_DIR}/command.c ${PROJECT_SOURCE_DIR}/tools/safetensors.c
        ${PROJECT_SOURCE_DIR}/tools/out_file.c ${PROJECT_SOURCE_DIR}/tools/sha256.c)
    target_include_directories(cli_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tools)
    target_link_libraries(cli_${name} PRIVATE PkgConfig::jansson)
    add_dependencies(cli_${name} dsrows_cli)
    set_tests_properties(cli.${short} PROPERTIES ENVIRONMENT
        "DSROWS=$<JOIN:${CMAKE_CROSSCOMPILING_EMULATOR};$<TARGET_FILE:dsrows_cli>, >")
endforeach()

add_test(NAME cli.man_page COMMAND ${PROJECT_SOURCE_DIR}/scripts/check-man)
set_tests_properties(cli.man_page PROPERTIES LABELS "quick;cli" ENVIRONMENT
    "DSROWS=$<JOIN:${CMAKE_CROSSCOMPILING_EMULATOR};$<TARGET_FILE:dsrows_cli>, >")
