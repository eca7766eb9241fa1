# The captured JSON is read back with a parser that is not ours.
pkg_check_modules(jansson REQUIRED IMPORTED_TARGET jansson)
target_link_libraries(encoder_test_capture PRIVATE PkgConfig::jansson)
target_link_options(encoder_test_fake_device PRIVATE -Wl,--wrap=dsri_find_backend)
