// The kernel of etdeploy::attention.out, for the cache of a language model:
//
//   attention.out(Tensor query, Tensor keys, Tensor values, Tensor positions, int window,
//                 float scale, float softcap, int sinks, *, Tensor(a!) out) -> Tensor(a!)
//
// query (1, heads, tokens, d), keys (groups, places, d), values (groups, places, e), positions
// (tokens,), out (1, tokens, heads, e). The keys and values of the tokens are in the cache: floats, or
// rows of etdeploy::pack.out, which are longer where they have a scale. Programs of earlier releases
// have no argument `sinks`.
#include "attention.h"

#include "registration.h"

namespace etdeploy {
namespace {

// Whether the tokens and what they see are in the cache: a position comes from outside.
bool in_cache(const Attention& a) {
  for (int64_t token = 0; token < a.tokens; ++token) {
    if (a.positions[token] != a.positions[0] + token) {
      return false;
    }
  }
  const int64_t seen = a.positions[a.tokens - 1] + 1 - a.first_seen(0);
  return a.positions[0] >= 0 && a.sinks >= 0 && a.sinks < a.places && seen <= a.places - a.sinks;
}

// A tensor of the cache, (groups, places, size), and how long its rows are as floats.
bool is_cached(const Tensor& tensor, Cached& cached, int64_t& size) {
  const ScalarType type = tensor.scalar_type();
  cached.data = tensor.const_data_ptr();
  cached.format = type == ScalarType::Char ? Format::kByte
      : type == ScalarType::Half           ? Format::kHalf
                                           : Format::kFloat;
  if (tensor.dim() != 3 || (cached.format == Format::kFloat && type != ScalarType::Float)) {
    return false;
  }
  size = tensor.size(2) - packed_size(cached.format, 0);
  return size > 0;
}

template <bool HAS_SINKS>
void attention_out(KernelRuntimeContext& context, Span<EValue*> stack) {
  const Tensor &query = stack[0]->toTensor(), &keys = stack[1]->toTensor();
  const Tensor &values = stack[2]->toTensor(), &positions = stack[3]->toTensor();
  Tensor& out = stack[HAS_SINKS ? 8 : 7]->toTensor();
  Cached cached_keys, cached_values;
  int64_t key_size, value_size;
  ET_KERNEL_CHECK(context, is_float(query, 4) && is_cached(keys, cached_keys, key_size) &&
                  is_cached(values, cached_values, value_size), InvalidArgument, );
  ET_KERNEL_CHECK(context, keys.scalar_type() == values.scalar_type(), InvalidArgument, );
  ET_KERNEL_CHECK(context, positions.scalar_type() == ScalarType::Long, InvalidArgument, );
  const Attention a = {query.const_data_ptr<float>(),
                       cached_keys,
                       cached_values,
                       positions.const_data_ptr<int64_t>(),
                       query.size(1),
                       keys.size(0),
                       query.size(2),
                       keys.size(1),
                       key_size,
                       value_size,
                       stack[4]->toInt(),
                       static_cast<float>(stack[5]->toDouble()),
                       static_cast<float>(stack[6]->toDouble()),
                       {query.size(2) * query.size(3), query.size(3)},
                       {keys.size(1) * keys.size(2), keys.size(2)},
                       {values.size(1) * values.size(2), values.size(2)},
                       nullptr,
                       true,
                       HAS_SINKS ? stack[7]->toInt() : 0};
  ET_KERNEL_CHECK(context, query.size(0) == 1 && query.size(3) == a.key_size, InvalidArgument, );
  ET_KERNEL_CHECK(context, values.size(0) == a.groups && values.size(1) == a.places,
                  InvalidArgument, );
  ET_KERNEL_CHECK(context, a.groups > 0 && a.heads % a.groups == 0, InvalidArgument, );
  ET_KERNEL_CHECK(context, a.tokens > 0 && positions.numel() == a.tokens, InvalidArgument, );
  ET_KERNEL_CHECK(context, in_cache(a), InvalidArgument, );
  ET_KERNEL_CHECK(context, resized(out, {1, a.tokens, a.heads, a.value_size}), InvalidArgument, );
  ET_KERNEL_CHECK(context, compute(a, out.mutable_data_ptr<float>()), MemoryAllocationFailed, );
}

constexpr char kName[] = "native_call_attention.out";

void with_or_without_sinks(KernelRuntimeContext& context, Span<EValue*> stack) {
  constexpr size_t kWithout = 8;
  return stack.size() == kWithout + 1 ? traced<kName, kWithout, attention_out<false>>(context, stack)
                                      : traced<kName, kWithout + 1, attention_out<true>>(context, stack);
}

const Kernel kernels[] = {Kernel("etdeploy::attention.out", with_or_without_sinks)};
[[maybe_unused]] const auto registered =
    executorch::runtime::register_kernels(Span<const Kernel>(kernels, 1));

} // namespace
} // namespace etdeploy
