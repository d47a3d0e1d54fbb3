// Registers a made-up operator when the program starts, as ExecuTorch's kernel libraries do.
#pragma once

#include <executorch/runtime/kernel/operator_registry.h>

namespace standin {
inline void nothing(executorch::runtime::KernelRuntimeContext&,
                    executorch::runtime::Span<executorch::runtime::EValue*>) {}
} // namespace standin

#define STANDIN_REGISTER(NAME)                                          \
  static const auto registered [[maybe_unused]] =                      \
      executorch::runtime::register_kernel(executorch::runtime::Kernel(NAME, &standin::nothing));
