# Maps components to targets. A wheel names its shared libraries executorch::<component>; a checkout
# and its install have static libraries with bare names. For a backend, -Detdeploy_targets_<component>
# says which: etdeploy/backends/ has these names.
set(etdeploy_targets_runtime
    "executorch" "executorch_core" "extension_module_static" "extension_data_loader"
    "extension_flat_tensor" "extension_named_data_map" "extension_tensor")
set(etdeploy_targets_threadpool "extension_threadpool")
set(etdeploy_targets_etdump "etdump" "flatccrt")
set(etdeploy_targets_kernels_portable "portable_ops_lib")
set(etdeploy_targets_kernels_optimized "optimized_native_cpu_ops_lib")
set(etdeploy_targets_kernels_selected "executorch_selected_kernels")
set(etdeploy_targets_kernels_quantized "quantized_ops_lib")
set(etdeploy_targets_kernels_llm "custom_ops")
set(etdeploy_targets_kernels_torchao "torchao_ops_executorch")
# Components that register operators or backends from static initializers. Nothing refers to them, so
# the linker drops them from a static library unless that is linked whole.
set(etdeploy_registers "^(kernels|backend)_")

function(etdeploy_link_component runner component)
  target_compile_definitions(${runner} PRIVATE HAS_${component})
  if(component STREQUAL "kernels_etdeploy")
    etdeploy_link_own_kernels(${runner})
    return()
  endif()
  if(TARGET executorch::${component})
    etdeploy_link_packaged(${runner} executorch::${component})
    return()
  endif()
  if(NOT DEFINED etdeploy_targets_${component})
    message(FATAL_ERROR "this ExecuTorch has no component '${component}'")
  endif()
  foreach(library IN LISTS etdeploy_targets_${component})
    if(NOT TARGET ${library})
      message(FATAL_ERROR "this ExecuTorch has no component '${component}' (no target '${library}')")
    endif()
    etdeploy_link_static(${runner} ${library} ${component})
  endforeach()
  if(component STREQUAL "etdump")
    target_compile_definitions(${runner} PRIVATE ET_EVENT_TRACER_ENABLED)
  endif()
  if(component STREQUAL "backend_vulkan" AND ETDEPLOY_EXECUTORCH_SOURCE)
    # For availability.h: the backend keeps its headers to itself.
    target_include_directories(${runner} SYSTEM PRIVATE
      "${ETDEPLOY_EXECUTORCH_SOURCE}/backends/vulkan/third-party/Vulkan-Headers/include")
  endif()
endfunction()

# A library of the wheel.
function(etdeploy_link_packaged runner library)
  # The package adds its own folder to the run path; the runner's is enough.
  get_target_property(options ${library} INTERFACE_LINK_OPTIONS)
  list(FILTER options EXCLUDE REGEX "-rpath,")
  set_target_properties(${library} PROPERTIES INTERFACE_LINK_OPTIONS "${options}")
  target_link_libraries(${runner} PRIVATE ${library})
endfunction()

# A library that was built from source.
function(etdeploy_link_static runner library component)
  get_target_property(options ${library} INTERFACE_LINK_OPTIONS)
  get_target_property(type ${library} TYPE)
  # Most of these targets already request to be linked whole. A second request would link them
  # twice, and two registrations of one operator end the process before main().
  if(component MATCHES "${etdeploy_registers}" AND type STREQUAL "STATIC_LIBRARY"
     AND NOT "${options}" MATCHES "whole-archive|force_load|WHOLEARCHIVE")
    target_link_libraries(${runner} PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,${library}>)
  else()
    target_link_libraries(${runner} PRIVATE ${library})
  endif()
endfunction()
