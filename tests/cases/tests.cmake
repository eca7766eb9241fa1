# The recorded data are read with the command's reader of safetensors files.
pkg_check_modules(jansson REQUIRED IMPORTED_TARGET jansson)
target_sources(cases_test_recorded_data PRIVATE ${PROJECT_SOURCE_DIR}/tools/safetensors.c ${PROJECT_SOURCE_DIR}/tools/out_file.c)
target_include_directories(cases_test_recorded_data PRIVATE ${PROJECT_SOURCE_DIR}/tools)
target_link_libraries(cases_test_recorded_data PRIVATE PkgConfig::jansson)

# An emulator runs one instruction in the time of fifty: cases that are about size take smaller ones there.
if(CMAKE_CROSSCOMPILING)
    foreach(target IN ITEMS top_k attention encoder)
        target_compile_definitions(cases_test_bug_kinds_${target} PRIVATE DSR_TEST_EMULATED)
    endforeach()
endif()
