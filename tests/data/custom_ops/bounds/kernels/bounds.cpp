// The least and the largest value of a tensor.
#include <algorithm>
#include <tuple>

#include <executorch/runtime/kernel/kernel_includes.h>

using executorch::aten::ArrayRef;
using executorch::aten::optional;
using executorch::aten::string_view;
using executorch::aten::Tensor;
using executorch::runtime::KernelRuntimeContext;

namespace bounds::native {

std::tuple<Tensor&, Tensor&> of_out(KernelRuntimeContext& context, const Tensor& x,
                                    ArrayRef<int64_t> dims, optional<double> margin, bool wide,
                                    string_view unit, Tensor& low, Tensor& high) {
  std::tuple<Tensor&, Tensor&> outs(low, high);
  ET_KERNEL_CHECK(context, static_cast<ssize_t>(dims.size()) == x.dim(), InvalidArgument, outs);
  const float* const data = x.const_data_ptr<float>();
  const auto [least, largest] = std::minmax_element(data, data + x.numel());
  const double room = margin.value_or(0) * (wide ? 2 : 1) * unit.size();
  low.mutable_data_ptr<float>()[0] = *least - room;
  high.mutable_data_ptr<float>()[0] = *largest + room;
  return outs;
}

} // namespace bounds::native
