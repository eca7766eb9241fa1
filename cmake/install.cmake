# Installation: headers, both libraries, the CMake package, the pkg-config file, the command and its man page.
include(CMakePackageConfigHelpers)

install(TARGETS dsrows dsrows_static EXPORT dsrowsTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT dsrowsTargets NAMESPACE dsrows:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dsrows)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/dsrows ${PROJECT_BINARY_DIR}/include/dsrows
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

configure_package_config_file(packaging/dsrowsConfig.cmake.in ${PROJECT_BINARY_DIR}/dsrowsConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dsrows)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dsrowsConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dsrowsConfig.cmake ${PROJECT_BINARY_DIR}/dsrowsConfigVersion.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dsrows)

# Relative to the file's own place, so that an installed tree can be moved.
string(REGEX REPLACE "[^/]+" ".." dsr_pc_prefix ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
configure_file(packaging/dsrows.pc.in ${PROJECT_BINARY_DIR}/dsrows.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/dsrows.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(DSR_BUILD_TOOLS)
    install(TARGETS dsrows_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    install(FILES packaging/dsrows.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
# What headers and the man page refer to, under the same names.
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY bench/shapes DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench)
