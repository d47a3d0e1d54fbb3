// The kernel of fused::rms_norm.out for ExecuTorch; ops.yaml says so.
#include <cmath>

#include <executorch/runtime/kernel/kernel_includes.h>

namespace fused::native {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::KernelRuntimeContext;

// Scales each row of the last dimension to a mean square of 1, then by the weight.
Tensor& rms_norm_out(KernelRuntimeContext& context, const Tensor& x, const Tensor& weight,
                     double eps, Tensor& out) {
  // Shapes may be dynamic: the output takes the one of this call.
  ET_KERNEL_CHECK(context, executorch::runtime::resize_tensor(out, x.sizes()) == Error::Ok,
                  InvalidArgument, out);
  ET_KERNEL_CHECK(context, x.scalar_type() == ScalarType::Float, InvalidArgument, out);
  ET_KERNEL_CHECK(context, weight.scalar_type() == ScalarType::Float, InvalidArgument, out);
  ET_KERNEL_CHECK(context, x.dim() > 0 && weight.numel() == x.size(x.dim() - 1),
                  InvalidArgument, out);
  const ssize_t width = weight.numel();
  const ssize_t rows = width == 0 ? 0 : x.numel() / width;
  const float* const scale = weight.const_data_ptr<float>();
  for (ssize_t row = 0; row < rows; ++row) {
    const float* const from = x.const_data_ptr<float>() + row * width;
    float* const to = out.mutable_data_ptr<float>() + row * width;
    float sum = 0;
    for (ssize_t i = 0; i < width; ++i) {
      sum += from[i] * from[i];
    }
    const float factor = 1 / std::sqrt(sum / width + static_cast<float>(eps));
    for (ssize_t i = 0; i < width; ++i) {
      to[i] = from[i] * factor * scale[i];
    }
  }
  return out;
}

} // namespace fused::native
