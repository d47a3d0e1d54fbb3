// What registers a kernel with ExecuTorch, and what kernels ask of their tensors.
#pragma once

#include <executorch/runtime/core/event_tracer_hooks.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/operator_registry.h>

namespace etdeploy {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Kernel;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::Span;

constexpr size_t kMostDims = 4;

inline bool is_float(const Tensor& tensor, ssize_t dims) {
  return tensor.scalar_type() == ScalarType::Float && tensor.dim() == dims;
}

inline bool resized(Tensor& out, std::initializer_list<int64_t> sizes) {
  SizesType found[kMostDims];
  size_t dims = 0;
  for (const int64_t size : sizes) {
    found[dims++] = static_cast<SizesType>(size);
  }
  return executorch::runtime::resize_tensor(out, {found, dims}) == Error::Ok;
}

// A kernel of so many arguments, the output last; the stack has the returned value after it.
template <const char* NAME, size_t ARGUMENTS, void (*KERNEL)(KernelRuntimeContext&, Span<EValue*>)>
void traced(KernelRuntimeContext& context, Span<EValue*> stack) {
  if (stack.size() != ARGUMENTS + 1) {
    context.fail(Error::InvalidProgram);
    return;
  }
  const executorch::runtime::internal::EventTracerProfileOpScope scope(
      context.internal_event_tracer(), NAME);
  KERNEL(context, stack);
  executorch::runtime::internal::event_tracer_log_evalue(context.internal_event_tracer(),
                                                         *stack[ARGUMENTS - 1]);
}

} // namespace etdeploy
