// The kernel of etdeploy::grouped_linear.out, a linear layer with weights of 4 bits:
//
//   grouped_linear.out(Tensor x, Tensor weight, Tensor scales, Tensor sums, Tensor bias, *,
//                      Tensor(a!) out) -> Tensor(a!)
//
// x (..., inputs) in floats; weight (outputs / 16, inputs / 32, 256) in bytes, scales (outputs / 16,
// groups, 16) in bfloat16, sums and bias (outputs) in floats, as linear.h has them.
#include "linear.h"

#include "registration.h"

namespace etdeploy {
namespace {

void linear_out(KernelRuntimeContext& context, Span<EValue*> stack) {
  const Tensor& x = stack[0]->toTensor();
  const Tensor& weight = stack[1]->toTensor();
  const Tensor& scales = stack[2]->toTensor();
  const Tensor& sums = stack[3]->toTensor();
  const Tensor& bias = stack[4]->toTensor();
  Tensor& out = stack[5]->toTensor();
  ET_KERNEL_CHECK(context, is_float(x, x.dim()) && x.dim() > 0 && is_float(out, x.dim()),
                  InvalidArgument, );
  ET_KERNEL_CHECK(context, weight.scalar_type() == ScalarType::Byte && weight.dim() == 3 &&
                               weight.size(2) == kBytes,
                  InvalidArgument, );
  const int64_t outputs = weight.size(0) * kOutputs, inputs = weight.size(1) * kInputs;
  ET_KERNEL_CHECK(context, scales.scalar_type() == ScalarType::BFloat16 && scales.dim() == 3 &&
                               scales.size(0) == weight.size(0) && scales.size(1) > 0 &&
                               weight.size(1) % scales.size(1) == 0 && scales.size(2) == kOutputs,
                  InvalidArgument, );
  ET_KERNEL_CHECK(context, is_float(sums, 1) && sums.size(0) == outputs, InvalidArgument, );
  ET_KERNEL_CHECK(context, is_float(bias, 1) && bias.size(0) == outputs, InvalidArgument, );
  ET_KERNEL_CHECK(context, x.size(x.dim() - 1) == inputs && x.dim() <= kMostDims, InvalidArgument, );
  SizesType sizes[kMostDims];
  std::copy(x.sizes().begin(), x.sizes().end() - 1, sizes);
  sizes[x.dim() - 1] = static_cast<SizesType>(outputs);
  ET_KERNEL_CHECK(context,
                  executorch::runtime::resize_tensor(out, {sizes, static_cast<size_t>(x.dim())}) ==
                      Error::Ok,
                  InvalidArgument, );
  const Weights weights{weight.const_data_ptr<uint8_t>(),
                        static_cast<const uint16_t*>(scales.const_data_ptr()),
                        sums.const_data_ptr<float>(),
                        bias.const_data_ptr<float>(),
                        outputs,
                        inputs,
                        scales.size(1)};
  ET_KERNEL_CHECK(context,
                  multiply(weights, x.const_data_ptr<float>(), x.numel() / inputs,
                           out.mutable_data_ptr<float>()),
                  MemoryAllocationFailed, );
}

constexpr char kName[] = "native_call_grouped_linear.out";
const Kernel kernels[] = {Kernel("etdeploy::grouped_linear.out", traced<kName, 6, linear_out>)};
[[maybe_unused]] const auto registered =
    executorch::runtime::register_kernels(Span<const Kernel>(kernels, 1));

} // namespace
} // namespace etdeploy
