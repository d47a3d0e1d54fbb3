// The kernel of etdeploy::rotate.out, the rotary embedding of queries and keys:
//
//   rotate.out(Tensor x, Tensor cos, Tensor sin, *, Tensor(a!) out) -> Tensor(a!)
//
// x and out ([1,] heads, tokens, d), cos and sin (1, tokens, d). The halves of a row are the parts of
// complex numbers: (a, b) becomes (a cos - b sin, b cos + a sin).
#include "registration.h"
#include "threads.h"
#include "vectors.h"

namespace etdeploy {
namespace {

// LANES divides `half`. Compilers do not vectorize a loop over floats here, since rows might overlap.
template <int LANES>
void rotate_row(const float* x, const float* cos, const float* sin, int64_t half, float* out) {
  for (int64_t i = 0; i < half; i += LANES) {
    Floats<LANES> a, b, cos_a, cos_b, sin_a, sin_b;
    load<LANES>(a, x + i);
    load<LANES>(b, x + half + i);
    load<LANES>(cos_a, cos + i);
    load<LANES>(cos_b, cos + half + i);
    load<LANES>(sin_a, sin + i);
    load<LANES>(sin_b, sin + half + i);
    store<LANES>(out + i, a * cos_a - b * sin_a);
    store<LANES>(out + half + i, b * cos_b + a * sin_b);
  }
}

void rotate_out(KernelRuntimeContext& context, Span<EValue*> stack) {
  const Tensor &x = stack[0]->toTensor(), &cos = stack[1]->toTensor(), &sin = stack[2]->toTensor();
  Tensor& out = stack[3]->toTensor();
  ET_KERNEL_CHECK(context, is_float(x, x.dim()) && is_float(cos, 3) && is_float(sin, 3),
                  InvalidArgument, );
  ET_KERNEL_CHECK(context, x.dim() == 3 || (x.dim() == 4 && x.size(0) == 1), InvalidArgument, );
  const int64_t tokens = cos.size(1), size = cos.size(2), heads = x.size(x.dim() - 3);
  ET_KERNEL_CHECK(context, x.size(x.dim() - 2) == tokens && x.size(x.dim() - 1) == size,
                  InvalidArgument, );
  ET_KERNEL_CHECK(context, size % 2 == 0, InvalidArgument, );
  ET_KERNEL_CHECK(context, cos.numel() == tokens * size && sin.numel() == tokens * size,
                  InvalidArgument, );
  ET_KERNEL_CHECK(context, executorch::runtime::resize_tensor(out, x.sizes()) == Error::Ok,
                  InvalidArgument, );
  const float* const from = x.const_data_ptr<float>();
  const float *const c = cos.const_data_ptr<float>(), *const s = sin.const_data_ptr<float>();
  float* const to = out.mutable_data_ptr<float>();
  const auto rotate = size % 8 == 0 ? rotate_row<4> : rotate_row<1>;
  run_rows(heads * tokens, size, [&](size_t row) {
    const size_t token = row % tokens;
    rotate(from + row * size, c + token * size, s + token * size, size / 2, to + row * size);
  });
}

constexpr char kName[] = "native_call_rotate.out";
const Kernel kernels[] = {Kernel("etdeploy::rotate.out", traced<kName, 4, rotate_out>)};
[[maybe_unused]] const auto registered =
    executorch::runtime::register_kernels(Span<const Kernel>(kernels, 1));

} // namespace
} // namespace etdeploy
