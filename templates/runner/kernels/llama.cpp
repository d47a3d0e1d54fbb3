// The kernels of two operators that ExecuTorch's own library for language models has, for runtimes
// without that library, such as the wheel's:
//
//   llama::custom_sdpa.out(Tensor query, Tensor key, Tensor value, SymInt start_pos,
//                          Tensor? attn_mask, float dropout, bool is_causal, float? scale, *,
//                          Tensor(a!) out) -> Tensor(a!)
//   llama::update_cache.out(Tensor value, Tensor(a!) cache, SymInt start_pos, *, Tensor(b!) out)
//                          -> Tensor(b!)
//
// query and out (1, tokens, heads, d), key and value (1, places, groups, d), mask (tokens, places);
// the cache (batch, places, groups, d). Only 32-bit floats attend.
#include <cstring>
#include <vector>

#include "attention.h"
#include "registration.h"

namespace etdeploy {
namespace {

void custom_sdpa_out(KernelRuntimeContext& context, Span<EValue*> stack) {
  const Tensor &query = stack[0]->toTensor(), &keys = stack[1]->toTensor();
  const Tensor& values = stack[2]->toTensor();
  const int64_t start = stack[3]->toInt();
  const bool causal = stack[6]->toBool();
  Tensor& out = stack[8]->toTensor();
  ET_KERNEL_CHECK(context, is_float(query, 4) && is_float(keys, 4) && is_float(values, 4),
                  InvalidArgument, );
  const int64_t tokens = query.size(1), heads = query.size(2), size = query.size(3);
  const int64_t places = keys.size(1), groups = keys.size(2);
  ET_KERNEL_CHECK(context, query.size(0) == 1 && keys.size(0) == 1 && keys.size(3) == size,
                  InvalidArgument, );
  ET_KERNEL_CHECK(context, groups > 0 && heads % groups == 0 && tokens > 0, InvalidArgument, );
  ET_KERNEL_CHECK(context, start >= 0 && start + tokens <= places, InvalidArgument, );
  for (int dim = 0; dim < 4; ++dim) {
    ET_KERNEL_CHECK(context, values.size(dim) == keys.size(dim), InvalidArgument, );
  }
  const float* mask = nullptr;
  if (!stack[4]->isNone()) {
    const Tensor& given = stack[4]->toTensor();
    ET_KERNEL_CHECK(context, is_float(given, 2) && !causal, InvalidArgument, );
    ET_KERNEL_CHECK(context, given.size(0) == tokens && given.size(1) == places,
                    InvalidArgument, );
    mask = given.const_data_ptr<float>();
  }
  std::vector<int64_t> positions(static_cast<size_t>(tokens));
  for (int64_t token = 0; token < tokens; ++token) {
    positions[static_cast<size_t>(token)] = start + token;
  }
  const double scale = stack[7]->isNone() ? 1 / std::sqrt(static_cast<double>(size))
                                          : stack[7]->toDouble();
  const Attention a = {query.const_data_ptr<float>(),
                       {keys.const_data_ptr<float>(), Format::kFloat},
                       {values.const_data_ptr<float>(), Format::kFloat},
                       positions.data(),
                       heads,
                       groups,
                       tokens,
                       places,
                       size,
                       size,
                       0,
                       static_cast<float>(scale),
                       0,
                       {size, heads * size},
                       {size, groups * size},
                       {size, groups * size},
                       mask,
                       causal};
  ET_KERNEL_CHECK(context, resized(out, {1, tokens, heads, size}), InvalidArgument, );
  ET_KERNEL_CHECK(context, compute(a, out.mutable_data_ptr<float>()), MemoryAllocationFailed, );
}

void update_cache_out(KernelRuntimeContext& context, Span<EValue*> stack) {
  const Tensor &value = stack[0]->toTensor(), &cache = stack[1]->toTensor();
  const int64_t start = stack[2]->toInt();
  ET_KERNEL_CHECK(context, value.dim() == 4 && cache.dim() == 4, InvalidArgument, );
  ET_KERNEL_CHECK(context, value.scalar_type() == cache.scalar_type(), InvalidArgument, );
  for (const int dim : {0, 2, 3}) {
    ET_KERNEL_CHECK(context, value.size(dim) == cache.size(dim), InvalidArgument, );
  }
  ET_KERNEL_CHECK(context, start >= 0 && start + value.size(1) <= cache.size(1),
                  InvalidArgument, );
  const size_t place = static_cast<size_t>(cache.size(2) * cache.size(3) * cache.element_size());
  const size_t batch = place * static_cast<size_t>(cache.size(1));
  const size_t written = place * static_cast<size_t>(value.size(1));
  const auto* from = static_cast<const uint8_t*>(value.const_data_ptr());
  auto* to = static_cast<uint8_t*>(cache.mutable_data_ptr()) + place * static_cast<size_t>(start);
  for (ssize_t i = 0; i < cache.size(0); ++i, from += written, to += batch) {
    std::memcpy(to, from, written);
  }
}

constexpr char kAttend[] = "native_call_custom_sdpa.out";
constexpr char kUpdate[] = "native_call_update_cache.out";
const Kernel kernels[] = {
    Kernel("llama::custom_sdpa.out", traced<kAttend, 9, custom_sdpa_out>),
    Kernel("llama::update_cache.out", traced<kUpdate, 4, update_cache_out>)};
[[maybe_unused]] const auto registered =
    executorch::runtime::register_kernels(Span<const Kernel>(kernels, 2));

} // namespace
} // namespace etdeploy
