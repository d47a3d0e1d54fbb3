# Builds static programs for 64-bit Arm Linux with zig (PyPI: ziglang), which includes a compiler,
# a linker and the musl C library. They need nothing of the system that they run on but its kernel.
#
# CMAKE_CXX_COMPILER names a program that starts zig: etdeploy writes it, with those for C, archives
# and archive indexes beside it.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
if(NOT CMAKE_CXX_COMPILER)
  set(CMAKE_CXX_COMPILER aarch64-linux-musl-clang++)
endif()
string(REGEX REPLACE "clang\\+\\+$" "" etdeploy_musl "${CMAKE_CXX_COMPILER}")
if(NOT CMAKE_C_COMPILER)
  set(CMAKE_C_COMPILER "${etdeploy_musl}clang")
endif()
# The machine's own tools cannot index objects of another architecture.
set(CMAKE_AR "${etdeploy_musl}ar" CACHE FILEPATH "")
set(CMAKE_RANLIB "${etdeploy_musl}ranlib" CACHE FILEPATH "")
unset(etdeploy_musl)

# -g0: zig writes debug information unless told not to; ExecuTorch's runner has 150 MB of it.
# -fno-sanitize=undefined: without optimization zig makes undefined behaviour a trap, other compilers
#   do not.
# _GNU_SOURCE: musl declares clock_gettime and others under -std=c99 only with it. C++ has it anyway.
#   It is defined empty, as sources define it themselves.
# sys/types.h: `uint` comes from it; sources count on glibc's stdlib.h to include it.
# musl/: an <assert.h> that declares __assert_fail as glibc does. Not -isystem, which zig searches
#   after its own folders.
set(etdeploy_flags "-g0 -fno-sanitize=undefined -I\"${CMAKE_CURRENT_LIST_DIR}/musl\" -include sys/types.h")
set(CMAKE_C_FLAGS_INIT "${etdeploy_flags} -D_GNU_SOURCE=")
set(CMAKE_CXX_FLAGS_INIT "${etdeploy_flags}")
set(CMAKE_ASM_FLAGS_INIT "-g0")
unset(etdeploy_flags)

# Programs that run during the build are this machine's. Libraries and headers of this machine are of
# no use: found ones come from where the command line says.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
