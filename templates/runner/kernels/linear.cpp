// The kernels of linear layers that take floats and round them to 8 bits (linear.h):
//
//   etdeploy::grouped_linear.out(Tensor x, Tensor weight, Tensor scales, Tensor sums, Tensor bias, *,
//                                Tensor(a!) out) -> Tensor(a!)
//   etdeploy::channelwise_linear.out, with the same arguments
//
// x is (..., inputs) in floats, sums and bias are (outputs) in floats. The weights of the first have 4
// bits: weight (outputs / 16, inputs / 32, 256) in bytes, scales (outputs / 16, groups, 16) in
// bfloat16. Those of the other have 8: weight (outputs, inputs) in signed bytes, scales (outputs) in
// floats.
#include "linear.h"

#include "registration.h"

namespace etdeploy {
namespace {

// Checks what both have, and gives `out` its size.
bool prepare(const Span<EValue*>& stack, int64_t outputs, int64_t inputs) {
  const Tensor& x = stack[0]->toTensor();
  const Tensor& sums = stack[3]->toTensor();
  const Tensor& bias = stack[4]->toTensor();
  Tensor& out = stack[5]->toTensor();
  if (!is_float(x, x.dim()) || x.dim() == 0 || x.dim() > kMostDims || !is_float(out, x.dim()) ||
      x.size(x.dim() - 1) != inputs || !is_float(sums, 1) || sums.size(0) != outputs ||
      !is_float(bias, 1) || bias.size(0) != outputs) {
    return false;
  }
  SizesType sizes[kMostDims];
  std::copy(x.sizes().begin(), x.sizes().end() - 1, sizes);
  sizes[x.dim() - 1] = static_cast<SizesType>(outputs);
  return executorch::runtime::resize_tensor(out, {sizes, static_cast<size_t>(x.dim())}) == Error::Ok;
}

template <typename Weights>
bool compute(const Weights& weights, const Span<EValue*>& stack) {
  const Tensor& x = stack[0]->toTensor();
  return multiply(weights, x.const_data_ptr<float>(), x.numel() / weights.inputs,
                  stack[5]->toTensor().mutable_data_ptr<float>());
}

void grouped_out(KernelRuntimeContext& context, Span<EValue*> stack) {
  const Tensor& weight = stack[1]->toTensor();
  const Tensor& scales = stack[2]->toTensor();
  ET_KERNEL_CHECK(context, weight.scalar_type() == ScalarType::Byte && weight.dim() == 3 &&
                               weight.size(1) > 0 && weight.size(2) == kBytes,
                  InvalidArgument, );
  ET_KERNEL_CHECK(context, scales.scalar_type() == ScalarType::BFloat16 && scales.dim() == 3 &&
                               scales.size(0) == weight.size(0) && scales.size(1) > 0 &&
                               weight.size(1) % scales.size(1) == 0 && scales.size(2) == kOutputs,
                  InvalidArgument, );
  const GroupedWeights weights{weight.const_data_ptr<uint8_t>(),
                               static_cast<const uint16_t*>(scales.const_data_ptr()),
                               stack[3]->toTensor().const_data_ptr<float>(),
                               stack[4]->toTensor().const_data_ptr<float>(),
                               weight.size(0) * kOutputs,
                               weight.size(1) * kInputs,
                               scales.size(1)};
  ET_KERNEL_CHECK(context, prepare(stack, weights.outputs, weights.inputs), InvalidArgument, );
  ET_KERNEL_CHECK(context, compute(weights, stack), MemoryAllocationFailed, );
}

void channelwise_out(KernelRuntimeContext& context, Span<EValue*> stack) {
  const Tensor& weight = stack[1]->toTensor();
  const Tensor& scales = stack[2]->toTensor();
  ET_KERNEL_CHECK(context, weight.scalar_type() == ScalarType::Char && weight.dim() == 2 &&
                               weight.size(0) % kOutputs == 0 && weight.size(1) % kInputs == 0 &&
                               weight.size(1) > 0 && weight.size(1) <= kMostInputs,
                  InvalidArgument, );
  ET_KERNEL_CHECK(context, is_float(scales, 1) && scales.size(0) == weight.size(0),
                  InvalidArgument, );
  const ChannelwiseWeights weights{weight.const_data_ptr<int8_t>(), scales.const_data_ptr<float>(),
                               stack[3]->toTensor().const_data_ptr<float>(),
                               stack[4]->toTensor().const_data_ptr<float>(), weight.size(0),
                               weight.size(1)};
  ET_KERNEL_CHECK(context, prepare(stack, weights.outputs, weights.inputs), InvalidArgument, );
  ET_KERNEL_CHECK(context, compute(weights, stack), MemoryAllocationFailed, );
}

constexpr char kGrouped[] = "native_call_grouped_linear.out";
constexpr char kChannelwise[] = "native_call_channelwise_linear.out";
const Kernel kernels[] = {
    Kernel("etdeploy::grouped_linear.out", traced<kGrouped, 6, grouped_out>),
    Kernel("etdeploy::channelwise_linear.out", traced<kChannelwise, 6, channelwise_out>),
};
[[maybe_unused]] const auto registered =
    executorch::runtime::register_kernels(Span<const Kernel>(kernels, 2));

} // namespace
} // namespace etdeploy
