# Builds for 64-bit x86 Linux on another machine, with GCC's cross compiler
# (Debian and Ubuntu: apt-get install g++-x86-64-linux-gnu).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
if(NOT CMAKE_CXX_COMPILER)
  set(CMAKE_CXX_COMPILER x86_64-linux-gnu-g++)
endif()
if(NOT CMAKE_C_COMPILER)
  # The C compiler of the same toolchain, whatever folder it is in: ...-g++ beside ...-gcc.
  string(REGEX REPLACE "g\\+\\+" "gcc" CMAKE_C_COMPILER "${CMAKE_CXX_COMPILER}")
endif()

# Programs that run during the build are this machine's. Packages are found where the command line
# says: the compiler knows its own C library, and ExecuTorch is not part of it.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
