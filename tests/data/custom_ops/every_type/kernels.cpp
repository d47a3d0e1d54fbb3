// Kernels for every type, as people write them: they link only where the types are just these.
#include <tuple>

#include <executorch/runtime/kernel/kernel_includes.h>

using executorch::aten::ArrayRef;
using executorch::aten::MemoryFormat;
using executorch::aten::optional;
using executorch::aten::Scalar;
using executorch::aten::ScalarType;
using executorch::aten::string_view;
using executorch::aten::Tensor;
using executorch::aten::TensorList;
using executorch::runtime::KernelRuntimeContext;

namespace every::native {

Tensor& one_out(KernelRuntimeContext&, const Tensor&, const optional<Tensor>&, TensorList,
                ArrayRef<optional<Tensor>>, int64_t, int64_t, double, bool, string_view,
                const Scalar&, const optional<Scalar>&, ScalarType, optional<ScalarType>,
                optional<MemoryFormat>, Tensor& out) {
  return out;
}

Tensor& three_(KernelRuntimeContext&, Tensor& self, ArrayRef<int64_t>) {
  return self;
}

void four_out(KernelRuntimeContext&, const Tensor&, TensorList) {}

} // namespace every::native

namespace every::type::native {

std::tuple<Tensor&, Tensor&> two_out(KernelRuntimeContext&, const Tensor&, ArrayRef<int64_t>,
                                     ArrayRef<int64_t>, optional<ArrayRef<int64_t>>,
                                     optional<ArrayRef<double>>, ArrayRef<bool>,
                                     optional<int64_t>, optional<double>, optional<bool>,
                                     optional<string_view>, Tensor& first, Tensor& second) {
  return {first, second};
}

} // namespace every::type::native
