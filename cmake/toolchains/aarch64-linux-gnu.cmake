# Cross build for aarch64 with Debian's gcc-aarch64-linux-gnu; tests run in qemu-user. scripts/fetch-aarch64-libs fills
# build/aarch64-root with the libraries that tests and the command need.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

get_filename_component(dsr_aarch64_root ${CMAKE_CURRENT_LIST_DIR}/../../build/aarch64-root ABSOLUTE)
set(CMAKE_FIND_ROOT_PATH ${dsr_aarch64_root} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${dsr_aarch64_root})
set(ENV{PKG_CONFIG_LIBDIR} ${dsr_aarch64_root}/usr/lib/aarch64-linux-gnu/pkgconfig)
