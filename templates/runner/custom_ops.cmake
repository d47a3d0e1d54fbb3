# The recipe's own kernels: the sources of a folder, or a target of its CMakeLists.txt.
#
#   ETDEPLOY_CUSTOM_OPS               the folder
#   ETDEPLOY_CUSTOM_OPS_SOURCES       sources, relative to it
#   ETDEPLOY_CUSTOM_OPS_REGISTRATION  the file that registers their kernels; unset if they do
#   ETDEPLOY_CUSTOM_OPS_TARGET        the target to link, in place of sources

if(ETDEPLOY_CUSTOM_OPS_SOURCES MATCHES "[.]c(;|$)")
  enable_language(C)
endif()

function(etdeploy_link_custom_sources runner)
  list(TRANSFORM ETDEPLOY_CUSTOM_OPS_SOURCES PREPEND "${ETDEPLOY_CUSTOM_OPS}/"
       OUTPUT_VARIABLE sources)
  # Kernels register from static initializers. Unlike a static library's, all objects are kept.
  add_library(etdeploy_custom_ops OBJECT ${sources} ${ETDEPLOY_CUSTOM_OPS_REGISTRATION})
  target_include_directories(etdeploy_custom_ops PRIVATE "${ETDEPLOY_CUSTOM_OPS}"
                                                         "${ETDEPLOY_CUSTOM_OPS}/include")
  target_compile_options(etdeploy_custom_ops
                         PRIVATE "-ffile-prefix-map=${ETDEPLOY_CUSTOM_OPS}=custom_ops")
  target_link_libraries(etdeploy_custom_ops PRIVATE etdeploy::executorch)
  target_link_libraries(${runner} PRIVATE etdeploy_custom_ops)
endfunction()

function(etdeploy_link_custom_target runner)
  set(target ${ETDEPLOY_CUSTOM_OPS_TARGET})
  set(file "${ETDEPLOY_CUSTOM_OPS}/CMakeLists.txt")
  add_subdirectory("${ETDEPLOY_CUSTOM_OPS}" "${CMAKE_CURRENT_BINARY_DIR}/custom_ops"
                   EXCLUDE_FROM_ALL)
  if(NOT TARGET ${target})
    message(FATAL_ERROR "${file} has no target '${target}' (runtime.custom_ops_target)")
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    target_link_libraries(${runner} PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,${target}>)
  elseif(type MATCHES "^(OBJECT|INTERFACE)_LIBRARY$")
    target_link_libraries(${runner} PRIVATE ${target})
  else()
    # A shared library would have to be deployed too, and found on the device.
    message(FATAL_ERROR "the target '${target}' of ${file} is a ${type}; make it a STATIC or an "
                        "OBJECT library, which becomes a part of the runner")
  endif()
endfunction()

if(ETDEPLOY_CUSTOM_OPS_TARGET)
  etdeploy_link_custom_target(${etdeploy_program})
else()
  etdeploy_link_custom_sources(${etdeploy_program})
endif()
