# What kernels compile with: ExecuTorch's headers and definitions, from a package or a checkout.
add_library(etdeploy_executorch INTERFACE)
add_library(etdeploy::executorch ALIAS etdeploy_executorch)
if(TARGET executorch::runtime)
  target_link_libraries(etdeploy_executorch INTERFACE executorch::runtime)
else()
  target_link_libraries(etdeploy_executorch INTERFACE executorch_core)
  if("threadpool" IN_LIST ETDEPLOY_COMPONENTS)
    target_link_libraries(etdeploy_executorch INTERFACE extension_threadpool)
  endif()
  if("etdump" IN_LIST ETDEPLOY_COMPONENTS)
    target_compile_definitions(etdeploy_executorch INTERFACE ET_EVENT_TRACER_ENABLED)
  endif()
endif()

# etdeploy's own kernels, which register themselves. They are compiled for speed whatever the build
# type is: at -O2, the products' loops are not unrolled and take twice as long with GCC 12.
function(etdeploy_link_own_kernels runner)
  set(folder "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
  add_library(etdeploy_kernels OBJECT "${folder}/kernels/attention.cpp"
                                      "${folder}/kernels/compute.cpp"
                                      "${folder}/kernels/linear.cpp"
                                      "${folder}/kernels/multiply.cpp"
                                      "${folder}/kernels/pack.cpp"
                                      "${folder}/kernels/rotation.cpp")
  # Two registrations of one operator would end the process before main().
  if(NOT "kernels_llm" IN_LIST ETDEPLOY_COMPONENTS)
    target_sources(etdeploy_kernels PRIVATE "${folder}/kernels/llama.cpp")
  endif()
  target_compile_options(etdeploy_kernels PRIVATE -Wall -Wextra -Wno-psabi -O3
                         "-ffile-prefix-map=${folder}=runner")
  if("threadpool" IN_LIST ETDEPLOY_COMPONENTS)
    target_compile_definitions(etdeploy_kernels PRIVATE HAS_threadpool)
  endif()
  target_link_libraries(etdeploy_kernels PRIVATE etdeploy::executorch)
  target_link_libraries(${runner} PRIVATE etdeploy_kernels)
endfunction()
