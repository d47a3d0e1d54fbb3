// Divides a call of the attention kernel among threads, and chooses what this processor computes best.
// It needs nothing of ExecuTorch's but, where the runner has them, its threads.
#include "attention.h"

#include <atomic>
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "threads.h"

namespace etdeploy {
namespace {

// Tokens of a part: their rows share a block of keys while it is in the cache of a core.
constexpr int64_t kTokens = 32;
// Positions of a part at least, and products below which other threads wake up for nothing.
constexpr int64_t kPositions = kBlock;
// Where the parts of few tokens end, whatever the last position is: at multiples of this.
constexpr int64_t kFixedPositions = 4 * kBlock;
constexpr int64_t kProducts = 1 << 16;

using Attend = void (*)(const Attention&, const Part&, float*, Sums);

template <int LANES, typename Element, typename Set = NoIntegers>
void attend_with(const Attention& a, const Part& part, float* memory, Sums sums) {
  attend<LANES, Element, Set>(a, part, memory, sums);
}

#if defined(__x86_64__)
template <typename Element>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))) void
attend_avx512(const Attention& a, const Part& part, float* memory, Sums sums) {
  attend<16, Element>(a, part, memory, sums);
}

template <typename Element>
__attribute__((target("avx2,fma"))) void
attend_avx2(const Attention& a, const Part& part, float* memory, Sums sums) {
  attend<8, Element>(a, part, memory, sums);
}
#elif defined(__aarch64__)
// The instructions for bytes that all cores of this processor have.
struct ArmFeatures {
  bool dotprod, i8mm;
};

[[maybe_unused]] ArmFeatures arm_features() {
#if defined(__linux__)
  constexpr unsigned long kDotprod = 1 << 20, kI8mm = 1 << 13; // HWCAP_ASIMDDP, HWCAP2_I8MM
  return {(getauxval(AT_HWCAP) & kDotprod) != 0, (getauxval(AT_HWCAP2) & kI8mm) != 0};
#elif defined(__APPLE__)
  const auto has = [](const char* name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
  };
  return {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_I8MM")};
#else
  return {false, false};
#endif
}
#endif

// The widest vectors of this processor that divide both sizes, and its instructions for bytes.
template <typename Element>
Attend attend_for(int64_t key_size, int64_t value_size) {
  const auto fits = [&](int lanes) { return key_size % lanes == 0 && value_size % lanes == 0; };
#if defined(__x86_64__)
  static const bool avx512 = __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl");
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx512 && fits(16)) {
    return attend_avx512<Element>;
  }
  if (avx2 && fits(8)) {
    return attend_avx2<Element>;
  }
#elif defined(__aarch64__)
  if constexpr (std::is_same_v<Element, int8_t>) {
#ifdef ETDEPLOY_DOTPROD
    static const ArmFeatures found = arm_features();
    if (found.dotprod && fits(4)) {
      return found.i8mm ? attend_with<4, int8_t, I8mm> : attend_with<4, int8_t, Dotprod>;
    }
#endif
    return fits(4) ? attend_with<4, int8_t, Neon> : attend_with<1, int8_t>;
  }
#endif
  return fits(4) ? attend_with<4, Element> : attend_with<1, Element>;
}

Attend attend_for(const Attention& a) {
  switch (a.keys.format) {
    case Format::kByte:
      return attend_for<int8_t>(a.key_size, a.value_size);
    case Format::kHalf:
      return attend_for<uint16_t>(a.key_size, a.value_size);
    default:
      return attend_for<float>(a.key_size, a.value_size);
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

// Where a part of few tokens ends, counted from the sinks. With one thread there is only one.
int64_t fixed_end(int64_t sinks, int64_t begin, int64_t to) {
  const int64_t step = thread_count() > 1 ? kFixedPositions : to;
  return std::min(to, sinks + ((begin - sinks) / step + 1) * step);
}

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
    const bool few = a.has_few_tokens();
    const int64_t first = a.first_seen(token), to = a.seen_end(token + tokens - 1);
    const int64_t from = few ? a.sinks + (first - a.sinks) / kBlock * kBlock : first;
    const int64_t sinks_end = std::min(a.sinks, to);
    const int64_t ranges = std::clamp<int64_t>((to - from) / kPositions, 1, wanted);
    const int64_t step = (to - from + ranges - 1) / ranges;
    for (int64_t group = 0; group < a.groups; ++group) {
      const size_t begun = found.parts.size();
      if (sinks_end > 0) {
        found.parts.push_back({group, token, tokens, 0, sinks_end});
      }
      for (int64_t begin = from, end = from; begin < to; begin = end) {
        end = few ? fixed_end(a.sinks, begin, to) : std::min(to, begin + step);
        found.parts.push_back({group, token, tokens, begin, end});
      }
      found.shared.push_back({begun, found.parts.size() - begun});
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

thread_local Memory<float> sums_memory, scratch_memory;

} // namespace

bool compute(const Attention& a, float* out) {
  const Division division = divided(a);
  const int64_t rows = a.heads_per_group() * std::min(kTokens, a.tokens);
  const int64_t each = rows * (a.value_size + 2);
  float* const all = sums_memory.of(division.parts.size() * each);
  if (all == nullptr) {
    return false;
  }
  std::vector<Sums> sums;
  for (size_t i = 0; i < division.parts.size(); ++i) {
    float* const own = all + i * each;
    sums.push_back({own, own + rows, own + 2 * rows});
  }
  std::atomic<bool> enough{true};
  const Attend attend = attend_for(a);
  run(division.parts.size(), division.threads, [&](size_t i) {
    if (float* const scratch = scratch_memory.of(Scratch::size(a, rows))) {
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

} // namespace etdeploy
