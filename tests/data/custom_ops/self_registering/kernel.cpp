// A kernel that registers itself: there is no yaml file.
#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_includes.h>

#include "scale.h"

using executorch::aten::Tensor;
using executorch::runtime::KernelRuntimeContext;

namespace {

Tensor& scaled_out(KernelRuntimeContext& context, const Tensor& x, Tensor& out) {
  ET_KERNEL_CHECK(context,
                  executorch::runtime::resize_tensor(out, x.sizes()) ==
                      executorch::runtime::Error::Ok,
                  InvalidArgument, out);
  for (ssize_t i = 0; i < x.numel(); ++i) {
    out.mutable_data_ptr<float>()[i] = kScale * x.const_data_ptr<float>()[i];
  }
  return out;
}

EXECUTORCH_LIBRARY(self, "scaled.out", scaled_out);

} // namespace
