# The package of an install: bare target names.
include("${CMAKE_CURRENT_LIST_DIR}/ExecuTorchTargets.cmake")
