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

#include "registration.h"
#include "threads.h"

namespace etdeploy {
namespace {

// Tokens of a part: their rows share a block of keys while it is in the cache of a core.
constexpr int64_t kTokens = 32;
// Positions of a part at least, and products below which other threads wake up for nothing.
constexpr int64_t kPositions = kBlock;
constexpr int64_t kProducts = 1 << 16;

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
  const int64_t seen = a.seen_end(a.tokens - 1) - a.first_seen(0);
  const int64_t products = a.heads * a.tokens * seen * (a.key_size + a.value_size);
  const int64_t threads = static_cast<int64_t>(thread_count());
  found.threads = threads > 1 && products >= kProducts;
  const int64_t wanted = found.threads ? (4 * threads + blocks - 1) / blocks : 1;
  for (int64_t token = 0; token < a.tokens; token += kTokens) {
    const int64_t tokens = std::min(kTokens, a.tokens - token);
    const int64_t from = a.first_seen(token), to = a.seen_end(token + tokens - 1);
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

// Memory that a thread keeps: each token calls the kernel once for each layer.
class Memory {
 public:
  // At least so many floats; null if there are none.
  float* floats(size_t count) {
    if (count > size_) {
      kept_.reset(new (std::nothrow) float[count]);
      size_ = kept_ ? count : 0;
    }
    return kept_.get();
  }

 private:
  std::unique_ptr<float[]> kept_;
  size_t size_ = 0;
};

thread_local Memory sums_memory, scratch_memory;

} // namespace

bool compute(const Attention& a, float* out) {
  const Division division = divided(a);
  const int64_t rows = a.heads_per_group() * std::min(kTokens, a.tokens);
  const int64_t each = rows * (a.value_size + 2);
  float* const all = sums_memory.floats(division.parts.size() * each);
  if (all == nullptr) {
    return false;
  }
  std::vector<Sums> sums;
  for (size_t i = 0; i < division.parts.size(); ++i) {
    float* const own = all + i * each;
    sums.push_back({own, own + rows, own + 2 * rows});
  }
  std::atomic<bool> enough{true};
  const Attend attend = attend_for(a.key_size, a.value_size);
  run(division.parts.size(), division.threads, [&](size_t i) {
    if (float* const scratch = scratch_memory.floats(scratch_size(a, rows))) {
      attend(a, division.parts[i], scratch, sums[i]);
    } else {
      enough = false;
    }
  });
  if (!enough) {
    return false;
  }
  // Of one token there is less to join than it costs to wake a thread.
  run(division.shared.size(), division.threads && a.tokens > 1, [&](size_t i) {
    const Shared shared = division.shared[i];
    join(a, division.parts[shared.first], sums, shared, out);
  });
  return true;
}

namespace {

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

void attention_out(KernelRuntimeContext& context, Span<EValue*> stack) {
  const Tensor &query = stack[0]->toTensor(), &keys = stack[1]->toTensor();
  const Tensor &values = stack[2]->toTensor(), &positions = stack[3]->toTensor();
  Tensor& out = stack[7]->toTensor();
  ET_KERNEL_CHECK(context, is_float(query, 4) && is_float(keys, 3) && is_float(values, 3),
                  InvalidArgument, );
  ET_KERNEL_CHECK(context, positions.scalar_type() == ScalarType::Long, InvalidArgument, );
  const Attention a = {query.const_data_ptr<float>(),
                       keys.const_data_ptr<float>(),
                       values.const_data_ptr<float>(),
                       positions.const_data_ptr<int64_t>(),
                       query.size(1),
                       keys.size(0),
                       query.size(2),
                       keys.size(1),
                       keys.size(2),
                       values.size(2),
                       stack[4]->toInt(),
                       static_cast<float>(stack[5]->toDouble()),
                       static_cast<float>(stack[6]->toDouble()),
                       {query.size(2) * query.size(3), query.size(3)},
                       {keys.size(1) * keys.size(2), keys.size(2)},
                       {values.size(1) * values.size(2), values.size(2)}};
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
const Kernel kernels[] = {Kernel("etdeploy::attention.out", traced<kName, 8, attention_out>)};
[[maybe_unused]] const auto registered =
    executorch::runtime::register_kernels(Span<const Kernel>(kernels, 1));

} // namespace
} // namespace etdeploy
