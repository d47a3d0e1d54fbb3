// The kernel of etdeploy::attention.out, for the cache of a language model:
//
//   attention.out(Tensor query, Tensor keys, Tensor values, Tensor positions, int window,
//                 float scale, float softcap, *, Tensor(a!) out) -> Tensor(a!)
//
// query (1, heads, tokens, d), keys (groups, places, d), values (groups, places, e), positions
// (tokens,), out (1, tokens, heads, e). The keys and values of the tokens are in the cache.
#include "attention.h"

#include <atomic>
#include <memory>
#include <new>
#include <vector>

#include <executorch/runtime/core/event_tracer_hooks.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/operator_registry.h>

#ifdef HAS_threadpool
#include "../threadpool.h"
#endif

namespace etdeploy {
namespace {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Kernel;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::Span;

// Tokens of a part: their rows share a block of keys while it is in the cache of a core.
constexpr int64_t kTokens = 32;
// Positions of a part at least, and products below which other threads wake up for nothing.
constexpr int64_t kPositions = 128;
constexpr int64_t kProducts = 1 << 18;

using Attend = void (*)(const Attention&, const Part&, float*, Sums);

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))) void
attend_avx512(const Attention& a, const Part& part, float* scratch, Sums sums) {
  attend<16>(a, part, scratch, sums);
}

__attribute__((target("avx2,fma"))) void
attend_avx2(const Attention& a, const Part& part, float* scratch, Sums sums) {
  attend<8>(a, part, scratch, sums);
}
#endif

template <int LANES>
void attend_plainly(const Attention& a, const Part& part, float* scratch, Sums sums) {
  attend<LANES>(a, part, scratch, sums);
}

// The widest vectors of this processor that divide both sizes.
Attend attend_for(int64_t key_size, int64_t value_size) {
  const auto fits = [&](int lanes) { return key_size % lanes == 0 && value_size % lanes == 0; };
#if defined(__x86_64__)
  static const bool avx512 = __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl");
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx512 && fits(16)) {
    return attend_avx512;
  }
  if (avx2 && fits(8)) {
    return attend_avx2;
  }
#endif
  return fits(4) ? attend_plainly<4> : attend_plainly<1>;
}

size_t thread_count() {
#ifdef HAS_threadpool
  auto* pool = executorch::extension::threadpool::get_threadpool();
  return pool ? pool->get_thread_count() : 1;
#else
  return 1;
#endif
}

template <typename Work>
void run(size_t count, bool threads, const Work& work) {
#ifdef HAS_threadpool
  auto* pool = executorch::extension::threadpool::get_threadpool();
  if (threads && pool && count > 1) {
    pool->run(work, count);
    return;
  }
#endif
  (void)threads;
  for (size_t i = 0; i < count; ++i) {
    work(i);
  }
}

// The same part of the rows over several ranges of positions, one after the other in `parts`.
struct Shared {
  size_t first, count;
};

struct Division {
  std::vector<Part> parts;
  std::vector<Shared> shared;
  bool threads;
};

// Parts of about the same size, four for each thread if there is enough to do.
Division divided(const Attention& a) {
  Division found;
  const int64_t blocks = (a.tokens + kTokens - 1) / kTokens * a.groups;
  const int64_t last = a.positions[a.tokens - 1];
  const int64_t seen = last + 1 - a.first_seen(0);
  const int64_t products = a.heads * a.tokens * seen * (a.key_size + a.value_size);
  const int64_t threads = static_cast<int64_t>(thread_count());
  found.threads = threads > 1 && products >= kProducts;
  const int64_t wanted = found.threads ? (4 * threads + blocks - 1) / blocks : 1;
  for (int64_t token = 0; token < a.tokens; token += kTokens) {
    const int64_t tokens = std::min(kTokens, a.tokens - token);
    const int64_t from = a.first_seen(token), to = a.positions[token + tokens - 1] + 1;
    const int64_t ranges = std::clamp<int64_t>((to - from) / kPositions, 1, wanted);
    const int64_t step = (to - from + ranges - 1) / ranges;
    for (int64_t group = 0; group < a.groups; ++group) {
      found.shared.push_back({found.parts.size(), 0});
      for (int64_t begin = from; begin < to; begin += step) {
        found.parts.push_back({group, token, tokens, begin, std::min(to, begin + step)});
        ++found.shared.back().count;
      }
    }
  }
  return found;
}

// Joins the sums of the ranges of positions, and writes the rows' output.
void join(const Attention& a, const Part& part, const std::vector<Sums>& sums, Shared shared,
          float* out) {
  const int64_t per_group = a.heads_per_group(), size = a.value_size;
  for (int64_t row = 0; row < per_group * part.tokens; ++row) {
    const int64_t head = part.group * per_group + row % per_group;
    float* to = out + ((part.token + row / per_group) * a.heads + head) * size;
    std::fill(to, to + size, 0.0f);
    float greatest = -INFINITY, weights = 0;
    for (size_t i = shared.first; i < shared.first + shared.count; ++i) {
      greatest = std::max(greatest, sums[i].greatest[row]);
    }
    for (size_t i = shared.first; i < shared.first + shared.count; ++i) {
      weights += sums[i].weights[row] * std::exp(sums[i].greatest[row] - greatest);
    }
    for (size_t i = shared.first; i < shared.first + shared.count; ++i) {
      const float share = std::exp(sums[i].greatest[row] - greatest) / weights;
      for (int64_t j = 0; j < size; ++j) {
        to[j] += sums[i].values[row * size + j] * share;
      }
    }
  }
}

// What a call works in; kept by the thread that makes it, since each token makes one per layer.
float* memory(size_t floats) {
  thread_local std::unique_ptr<float[]> kept;
  thread_local size_t size = 0;
  if (floats > size) {
    kept.reset(new (std::nothrow) float[floats]);
    size = kept ? floats : 0;
  }
  return kept.get();
}

bool compute(const Attention& a, float* out) {
  const Division division = divided(a);
  const int64_t rows = a.heads_per_group() * std::min(kTokens, a.tokens);
  const int64_t scratch = scratch_size(a, rows);
  const int64_t each = scratch + rows * (a.value_size + 2);
  float* const all = memory(division.parts.size() * each);
  if (all == nullptr) {
    return false;
  }
  std::vector<Sums> sums;
  for (size_t i = 0; i < division.parts.size(); ++i) {
    float* const own = all + i * each + scratch;
    sums.push_back({own, own + rows, own + 2 * rows});
  }
  const Attend attend = attend_for(a.key_size, a.value_size);
  run(division.parts.size(), division.threads,
      [&](size_t i) { attend(a, division.parts[i], all + i * each, sums[i]); });
  run(division.shared.size(), division.threads, [&](size_t i) {
    const Shared shared = division.shared[i];
    join(a, division.parts[shared.first], sums, shared, out);
  });
  return true;
}

bool is_float(const Tensor& tensor, ssize_t dims) {
  return tensor.scalar_type() == ScalarType::Float && tensor.dim() == dims;
}

// Whether the tokens and what they see are in the cache: a position comes from outside.
bool in_cache(const Attention& a) {
  for (int64_t token = 0; token < a.tokens; ++token) {
    if (a.positions[token] != a.positions[0] + token) {
      return false;
    }
  }
  const int64_t seen = a.positions[a.tokens - 1] + 1 - a.first_seen(0);
  return a.positions[0] >= 0 && seen <= a.places;
}

Tensor& attention_out(KernelRuntimeContext& context, const Tensor& query, const Tensor& keys,
                      const Tensor& values, const Tensor& positions, int64_t window, double scale,
                      double softcap, Tensor& out) {
  ET_KERNEL_CHECK(context, is_float(query, 4) && is_float(keys, 3) && is_float(values, 3),
                  InvalidArgument, out);
  ET_KERNEL_CHECK(context, positions.scalar_type() == ScalarType::Long, InvalidArgument, out);
  const Attention a = {
      query.const_data_ptr<float>(), keys.const_data_ptr<float>(), values.const_data_ptr<float>(),
      positions.const_data_ptr<int64_t>(), query.size(1), keys.size(0), query.size(2),
      keys.size(1), keys.size(2), values.size(2), window, static_cast<float>(scale),
      static_cast<float>(softcap)};
  ET_KERNEL_CHECK(context, query.size(0) == 1 && query.size(3) == a.key_size, InvalidArgument, out);
  ET_KERNEL_CHECK(context, values.size(0) == a.groups && values.size(1) == a.places,
                  InvalidArgument, out);
  ET_KERNEL_CHECK(context, a.groups > 0 && a.heads % a.groups == 0, InvalidArgument, out);
  ET_KERNEL_CHECK(context, a.tokens > 0 && positions.numel() == a.tokens, InvalidArgument, out);
  ET_KERNEL_CHECK(context, in_cache(a), InvalidArgument, out);
  const executorch::aten::SizesType sizes[] = {
      1, static_cast<executorch::aten::SizesType>(a.tokens),
      static_cast<executorch::aten::SizesType>(a.heads),
      static_cast<executorch::aten::SizesType>(a.value_size)};
  ET_KERNEL_CHECK(context, executorch::runtime::resize_tensor(out, {sizes, 4}) == Error::Ok,
                  InvalidArgument, out);
  ET_KERNEL_CHECK(context, compute(a, out.mutable_data_ptr<float>()), MemoryAllocationFailed, out);
  return out;
}

constexpr size_t kArguments = 8;

void call(KernelRuntimeContext& context, Span<EValue*> stack) {
  if (stack.size() != kArguments + 1) { // the returned value, the output again, is the last
    context.fail(Error::InvalidProgram);
    return;
  }
  const executorch::runtime::internal::EventTracerProfileOpScope scope(
      context.internal_event_tracer(), "native_call_attention.out");
  Tensor& out = stack[7]->toTensor();
  attention_out(context, stack[0]->toTensor(), stack[1]->toTensor(), stack[2]->toTensor(),
                stack[3]->toTensor(), stack[4]->toInt(), stack[5]->toDouble(),
                stack[6]->toDouble(), out);
  executorch::runtime::internal::event_tracer_log_evalue(context.internal_event_tracer(),
                                                         *stack[7]);
}

const Kernel kernels[] = {Kernel("etdeploy::attention.out", call)};
[[maybe_unused]] const auto registered =
    executorch::runtime::register_kernels(Span<const Kernel>(kernels, 1));

} // namespace
} // namespace etdeploy
