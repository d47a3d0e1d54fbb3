# The options of the stand-in, written as ExecuTorch writes its own.

define_overridable_option(EXECUTORCH_ENABLE_LOGGING "Build with log messages" BOOL OFF)
define_overridable_option(
  EXECUTORCH_LOG_LEVEL "Least level of log messages. Choices: Debug, Info, Error, Fatal" STRING
  "Info" # a comment, with (parentheses)
)
define_overridable_option(EXECUTORCH_PAL_DEFAULT "Platform: posix, minimal, android" STRING "posix")
define_overridable_option(EXECUTORCH_OPTIMIZE_SIZE "Optimize for size" BOOL OFF)
define_overridable_option(
  EXECUTORCH_ENABLE_PROGRAM_VERIFICATION "Check a program before it is run" BOOL OFF
)
define_overridable_option(EXECUTORCH_ENABLE_EVENT_TRACER "Trace events" BOOL OFF)
define_overridable_option(EXECUTORCH_BUILD_DEVTOOLS "Build the developer tools" BOOL OFF)
define_overridable_option(EXECUTORCH_BUILD_EXECUTOR_RUNNER "Build a runner" BOOL ON)
define_overridable_option(EXECUTORCH_BUILD_EXTENSION_EVALUE_UTIL "EValue utilities" BOOL ON)
define_overridable_option(EXECUTORCH_BUILD_EXTENSION_RUNNER_UTIL "Runner utilities" BOOL ON)
define_overridable_option(EXECUTORCH_BUILD_EXTENSION_DATA_LOADER "Data loaders" BOOL ON)
define_overridable_option(EXECUTORCH_BUILD_EXTENSION_FLAT_TENSOR "Flat tensors" BOOL ON)
define_overridable_option(EXECUTORCH_BUILD_EXTENSION_MODULE "Module" BOOL OFF)
define_overridable_option(EXECUTORCH_BUILD_EXTENSION_NAMED_DATA_MAP "Named data" BOOL OFF)
define_overridable_option(EXECUTORCH_BUILD_EXTENSION_TENSOR "Tensors" BOOL OFF)
define_overridable_option(EXECUTORCH_BUILD_PORTABLE_OPS "Portable kernels" BOOL ON)
define_overridable_option(EXECUTORCH_BUILD_KERNELS_OPTIMIZED "Optimized kernels" BOOL OFF)
define_overridable_option(EXECUTORCH_BUILD_KERNELS_QUANTIZED "Quantized kernels" BOOL OFF)
define_overridable_option(EXECUTORCH_BUILD_KERNELS_LLM "Kernels for language models" BOOL OFF)
define_overridable_option(EXECUTORCH_BUILD_XNNPACK "The XNNPACK backend" BOOL OFF)
define_overridable_option(EXECUTORCH_BUILD_VULKAN "The Vulkan backend" BOOL OFF)
define_overridable_option(EXECUTORCH_BUILD_QNN "The QNN backend" BOOL OFF)
define_overridable_option(EXECUTORCH_BUILD_COREML "The Core ML backend" BOOL OFF)
define_overridable_option(EXECUTORCH_BUILD_PTHREADPOOL "Thread pool" BOOL ON)
define_overridable_option(EXECUTORCH_BUILD_CPUINFO "Processor facts" BOOL ON)
define_overridable_option(EXECUTORCH_XNNPACK_ENABLE_KLEIDI "KleidiAI's kernels" BOOL ON)
define_overridable_option(EXECUTORCH_XNNPACK_ENABLE_WEIGHT_CACHE "Share weights" BOOL OFF)
define_overridable_option(EXECUTORCH_THREADPOOL_USE_PERFORMANCE_CORES "One a fast core" BOOL OFF)
define_overridable_option(EXECUTORCH_THREADPOOL_USE_ALL_LOGICAL_CORES "One a core" BOOL OFF)
define_overridable_option(EXECUTORCH_SELECT_OPS_YAML "Operators of a file" STRING "")
define_overridable_option(EXECUTORCH_SELECT_OPS_LIST "Operators of a list" STRING "")
define_overridable_option(EXECUTORCH_SELECT_OPS_MODEL "Operators of a program" STRING "")
define_overridable_option(EXECUTORCH_ENABLE_DTYPE_SELECTIVE_BUILD "Its data types" BOOL FALSE)

check_required_options_on(IF_ON EXECUTORCH_ENABLE_EVENT_TRACER REQUIRES EXECUTORCH_BUILD_DEVTOOLS)
check_required_options_on(
  IF_ON EXECUTORCH_BUILD_EXTENSION_MODULE REQUIRES EXECUTORCH_BUILD_EXTENSION_DATA_LOADER
  EXECUTORCH_BUILD_EXTENSION_FLAT_TENSOR EXECUTORCH_BUILD_EXTENSION_NAMED_DATA_MAP
)
check_required_options_on(
  IF_ON EXECUTORCH_BUILD_EXECUTOR_RUNNER REQUIRES EXECUTORCH_BUILD_EXTENSION_EVALUE_UTIL
  EXECUTORCH_BUILD_EXTENSION_RUNNER_UTIL
)
check_required_options_on(
  IF_ON EXECUTORCH_BUILD_XNNPACK REQUIRES EXECUTORCH_BUILD_CPUINFO EXECUTORCH_BUILD_PTHREADPOOL
)
check_required_options_on(
  IF_ON EXECUTORCH_BUILD_KERNELS_LLM REQUIRES EXECUTORCH_BUILD_KERNELS_OPTIMIZED
)
check_required_options_on(
  IF_ON EXECUTORCH_ENABLE_DTYPE_SELECTIVE_BUILD REQUIRES EXECUTORCH_SELECT_OPS_MODEL
)
check_conflicting_options_on(
  IF_ON EXECUTORCH_THREADPOOL_USE_PERFORMANCE_CORES CONFLICTS_WITH
  EXECUTORCH_THREADPOOL_USE_ALL_LOGICAL_CORES
)
check_conflicting_options_on(
  IF_ON EXECUTORCH_SELECT_OPS_LIST CONFLICTS_WITH EXECUTORCH_SELECT_OPS_MODEL
)
