// The kernel of etdeploy::pack.out, which makes rows for a cache of less than 32 bits:
//
//   pack.out(Tensor x, int bits, *, Tensor(a!) out) -> Tensor(a!)
//
// x (heads, tokens, d). With 16 bits, out has its shape and halves; with 8, out (heads, tokens, d + 4)
// has bytes, and behind those of a row the float that they are multiplied by.
#include "registration.h"
#include "rows.h"
#include "threads.h"

namespace etdeploy {
namespace {

void pack_out(KernelRuntimeContext& context, Span<EValue*> stack) {
  const Tensor& x = stack[0]->toTensor();
  const int64_t bits = stack[1]->toInt();
  Tensor& out = stack[2]->toTensor();
  ET_KERNEL_CHECK(context, is_float(x, 3) && (bits == 8 || bits == 16), InvalidArgument, );
  const Format format = bits == 8 ? Format::kByte : Format::kHalf;
  ET_KERNEL_CHECK(context, out.scalar_type() == (bits == 8 ? ScalarType::Char : ScalarType::Half),
                  InvalidArgument, );
  const int64_t heads = x.size(0), tokens = x.size(1), size = x.size(2);
  const int64_t packed = packed_size(format, size);
  ET_KERNEL_CHECK(context, resized(out, {heads, tokens, packed}), InvalidArgument, );
  const float* const from = x.const_data_ptr<float>();
  void* const to = out.mutable_data_ptr();
  run_rows(heads * tokens, size, [&](size_t row) {
    if (format == Format::kByte) {
      pack_bytes(from + row * size, size, static_cast<int8_t*>(to) + row * packed);
    } else {
      pack_halves(from + row * size, size, static_cast<uint16_t*>(to) + row * packed);
    }
  });
}

constexpr char kName[] = "native_call_pack.out";
const Kernel kernels[] = {Kernel("etdeploy::pack.out", traced<kName, 3, pack_out>)};
[[maybe_unused]] const auto registered =
    executorch::runtime::register_kernels(Span<const Kernel>(kernels, 1));

} // namespace
} // namespace etdeploy
