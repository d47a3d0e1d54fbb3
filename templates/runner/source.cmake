# ExecuTorch from a checkout, as a part of this build: only what the runner links is compiled.
#
# It is not installed first: an install compiles every target of the checkout, its package requires
# the portable kernels even where no program needs them, a selective build for data types cannot be
# exported at all, and the headers and the definition of the tracer are not in it (seen in 1.4.1).

# XNNPACK and others are written in C.
enable_language(C)
# Installing would need every target; this omits the install rules.
set(CMAKE_SKIP_INSTALL_RULES ON)
# The source tree's own paths in messages; equal sources then give equal files on every machine.
get_filename_component(etdeploy_parent "${ETDEPLOY_EXECUTORCH_SOURCE}" DIRECTORY)
get_filename_component(etdeploy_real_source "${ETDEPLOY_EXECUTORCH_SOURCE}" REALPATH)
add_compile_options("-ffile-prefix-map=${etdeploy_parent}/="
                    "-ffile-prefix-map=${etdeploy_real_source}=executorch")
# ExecuTorch tests with `if(NOT <path>)` whether a model was named, which is false only for the name
# of a variable that is on.
if(EXECUTORCH_SELECT_OPS_MODEL)
  set("${EXECUTORCH_SELECT_OPS_MODEL}" ON)
endif()

add_subdirectory("${ETDEPLOY_EXECUTORCH_SOURCE}" "${CMAKE_CURRENT_BINARY_DIR}/et"
                 EXCLUDE_FROM_ALL)

# Only the kernel sources that the selected operators need are compiled. Otherwise the sources of
# every operator would be compiled, and then dropped by the linker.
function(etdeploy_keep_needed_kernels library)
  get_target_property(sources ${library} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(name "${source}" NAME)
    if(source MATCHES "/cpu/op_[^/]*[.]cpp$" AND NOT name IN_LIST ETDEPLOY_KERNEL_FILES)
      list(REMOVE_ITEM sources "${source}")
    endif()
  endforeach()
  set_target_properties(${library} PROPERTIES SOURCES "${sources}")
endfunction()
if(ETDEPLOY_KERNEL_FILES)
  foreach(library IN ITEMS portable_kernels selected_portable_kernels optimized_portable_kernels
                           optimized_kernels)
    if(TARGET ${library})
      etdeploy_keep_needed_kernels(${library})
    endif()
  endforeach()
endif()

# flatcc writes its library into the source tree, where a build for another target would take it.
if(TARGET flatccrt)
  set_target_properties(flatccrt PROPERTIES ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
endif()
file(STRINGS "${ETDEPLOY_EXECUTORCH_SOURCE}/version.txt" EXECUTORCH_BUILD_VERSION LIMIT_COUNT 1)
# The LLM kernels are compiled for ARMv8.2, and pass that on to what links them: the runner itself
# would end with an illegal instruction on older processors, whatever its program (seen in 1.4.1).
if(TARGET custom_ops)
  set_target_properties(custom_ops PROPERTIES INTERFACE_COMPILE_OPTIONS "")
endif()
# GCC 12 fails with an internal error in its loop vectorizer on one of these files. They are written
# with intrinsics and lose nothing without it.
if(TARGET kleidiai AND CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(kleidiai PRIVATE -fno-tree-loop-vectorize)
endif()

# EXECUTORCH_OPTIMIZE_SIZE disables exceptions everywhere, and this library catches bad_alloc
# where it packs weights: its XNNWeightsCache.cpp would not compile (seen in 1.4.1).
if(EXECUTORCH_OPTIMIZE_SIZE AND TARGET xnnpack_backend AND NOT MSVC)
  target_compile_options(xnnpack_backend PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fexceptions>)
endif()

# ExecuTorch's switches are definitions of whole folders and reach XNNPACK, which uses none of them.
# Without them its files, nearly all of the build, are not recompiled when a switch changes.
function(etdeploy_forget_switches directory)
  get_property(definitions DIRECTORY "${directory}" PROPERTY COMPILE_DEFINITIONS)
  list(FILTER definitions EXCLUDE REGEX "^(ET_|ENABLE_XNNPACK_)")
  set_property(DIRECTORY "${directory}" PROPERTY COMPILE_DEFINITIONS "${definitions}")
  get_property(targets DIRECTORY "${directory}" PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(definitions ${target} COMPILE_DEFINITIONS)
    if(definitions)
      list(FILTER definitions EXCLUDE REGEX "^(ET_|ENABLE_XNNPACK_)")
      set_target_properties(${target} PROPERTIES COMPILE_DEFINITIONS "${definitions}")
    endif()
  endforeach()
  get_property(folders DIRECTORY "${directory}" PROPERTY SUBDIRECTORIES)
  foreach(folder IN LISTS folders)
    etdeploy_forget_switches("${folder}")
  endforeach()
endfunction()
foreach(library IN ITEMS XNNPACK cpuinfo pthreadpool)
  if(TARGET ${library})
    get_target_property(directory ${library} SOURCE_DIR)
    etdeploy_forget_switches("${directory}")
  endif()
endforeach()
