// Divides the products of linear.h among threads, and computes them with what this processor has for
// bytes. Whatever that is, and however many rows there are, a row's sums are the same integers, and
// its groups are added up in their order.
#include <algorithm>
#include <numeric>

#include "channelwise.h"
#include "grouped.h"
#include "threads.h"

namespace etdeploy {
namespace {

// Products below which other threads wake up for nothing, and parts for each thread.
constexpr int64_t kProducts = 1 << 17, kParts = 4;

// What this processor computes with.
template <typename Weights>
using Tiles = void (*)(const Block<Weights>& block, int64_t row, float* out);
struct Set {
  void (*round)(const float*, int64_t, int8_t*, int32_t*, Steps&) = round_row;
  Tiles<GroupedWeights> grouped = in_single_tiles<GroupedPlain, 1>;
  Tiles<ChannelwiseWeights> channelwise = in_single_tiles<ChannelwisePlain, 1>;

  void multiply(const Block<GroupedWeights>& block, float* out) const { grouped(block, 0, out); }
  void multiply(const Block<ChannelwiseWeights>& block, float* out) const {
    channelwise(block, 0, out);
  }
};

#if defined(__x86_64__)
constexpr Set kAvx2{round_row_avx2, in_single_tiles<GroupedAvx2, 4>,
                    in_single_tiles<ChannelwiseAvx2, 2>};
constexpr Set kVnni{round_row_avx2, in_tiles<GroupedVnni, 6>, in_single_tiles<ChannelwiseVnni, 4>};
#endif

Set choose() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni")) {
    return kVnni;
  }
  if (avx2) {
    return kAvx2;
  }
#endif
  return {};
}

const Set& chosen() {
  static const Set set = choose();
  return set;
}

thread_local Memory<int32_t> memory;

template <typename Weights>
bool multiply_rows(const Set& set, const Weights& weights, const float* x, int64_t rows,
                   float* out) {
  const int64_t inputs = weights.inputs, blocks = inputs / kInputs;
  int32_t* const words = memory.of(rows * (inputs / 4 + blocks + 3));
  if (words == nullptr) {
    return false;
  }
  int8_t* const values = reinterpret_cast<int8_t*>(words);
  int32_t* const offsets = words + rows * inputs / 4;
  int32_t* const totals = offsets + rows * blocks;
  float* const scales = reinterpret_cast<float*>(totals + rows);
  float* const zeros = scales + rows;
  run_rows(rows, inputs, [&](size_t row) {
    Steps steps;
    int32_t* const own = offsets + row * blocks;
    set.round(x + row * inputs, inputs, values + row * inputs, own, steps);
    totals[row] = std::accumulate(own, own + blocks, 0);
    scales[row] = steps.scale;
    zeros[row] = steps.zero;
  });
  const Rounded rounded{values, offsets, totals, scales, zeros};
  const int64_t outputs = weights.outputs / kOutputs;
  const bool threads = rows * inputs * weights.outputs >= kProducts;
  const auto parts = static_cast<int64_t>(thread_count()) > 1 && threads
      ? std::min<int64_t>(outputs, kParts * thread_count())
      : 1;
  run(parts, threads, [&](size_t part) {
    const int64_t begin = part * outputs / parts, end = (part + 1) * outputs / parts;
    for (int64_t index = begin; index < end; index += 2) {
      set.multiply(Block<Weights>{weights, rounded, rows, index, index + 1 < end}, out);
    }
  });
  return true;
}

} // namespace

bool multiply(const GroupedWeights& weights, const float* x, int64_t rows, float* out) {
  return multiply_rows(chosen(), weights, x, rows, out);
}

bool multiply(const ChannelwiseWeights& weights, const float* x, int64_t rows, float* out) {
  return multiply_rows(chosen(), weights, x, rows, out);
}

} // namespace etdeploy
