// Divides the products of linear.h among threads, and computes them with what this processor has for
// bytes. Whatever that is, and however many rows there are, a row's sums are the same integers, and
// its groups are added up in their order.
#include "linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "threads.h"
#include "vectors.h"

namespace etdeploy {
namespace {

// Products below which other threads wake up for nothing, and parts for each thread.
constexpr int64_t kProducts = 1 << 17, kParts = 4;

// Rows in 8 bits. `excess` is 8 times the sum of each block of 32 numbers: products with weights to
// which 8 was added are too large by that.
struct Rounded {
  const int8_t* values; // (rows, inputs)
  const int32_t* excess; // (rows, inputs / 32)
  const float* scales;
  const float* zeros; // zero points, as floats
};

// A row, rounded as torchao does: 255 steps from the least number to the greatest, or to 0.
struct Steps {
  float scale, zero;
};

ETDEPLOY_INLINE Steps steps_between(float least, float greatest) {
  const float scale = std::max((greatest - least) / 255, 1.1920929e-7f);
  const float zero = -128 - std::nearbyint(least / scale);
  return {scale, std::min(std::max(zero, -128.0f), 127.0f)};
}

void round_row(const float* x, int64_t size, int8_t* to, int32_t* excess, Steps& steps) {
  float least = 0, greatest = 0;
  for (int64_t i = 0; i < size; ++i) {
    least = std::min(least, x[i]);
    greatest = std::max(greatest, x[i]);
  }
  steps = steps_between(least, greatest);
  const float by = 1 / steps.scale;
  for (int64_t i = 0; i < size; ++i) {
    const float number = std::nearbyint(x[i] * by) + steps.zero;
    to[i] = static_cast<int8_t>(std::min(std::max(number, -128.0f), 127.0f));
  }
  for (int64_t i = 0; i < size; i += kInputs) {
    int32_t sum = 0;
    for (int64_t j = 0; j < kInputs; ++j) {
      sum += to[i + j];
    }
    excess[i / kInputs] = 8 * sum;
  }
}

// A block of 16 outputs, for some rows.
struct Block {
  const Weights& weights;
  const Rounded& rows;
  int64_t index;

  int64_t blocks() const { return weights.inputs / kInputs; }
  // Blocks of inputs that share a scale.
  int64_t shared() const { return blocks() / weights.groups; }
  const uint8_t* values() const { return weights.values + index * blocks() * kBytes; }
  const uint16_t* scales() const { return weights.scales + index * weights.groups * kOutputs; }
};

float from_bfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float number;
  std::memcpy(&number, &wide, sizeof number);
  return number;
}

void multiply_plain(const Block& block, int64_t row, int64_t end, float* out) {
  const Weights& w = block.weights;
  for (; row < end; ++row) {
    float sums[kOutputs] = {};
    for (int64_t b = 0; b < block.blocks(); ++b) {
      const uint8_t* const values = block.values() + b * kBytes;
      const int8_t* const x = block.rows.values + row * w.inputs + b * kInputs;
      for (int64_t o = 0; o < kOutputs; ++o) {
        int32_t sum = -block.rows.excess[row * block.blocks() + b];
        for (int64_t run = 0; run < 4; ++run) {
          for (int64_t i = 0; i < 4; ++i) {
            const uint8_t both = values[(run * kOutputs + o) * 4 + i];
            sum += (both & 15) * x[run * 8 + i] + (both >> 4) * x[run * 8 + 4 + i];
          }
        }
        const uint16_t scale = block.scales()[b / block.shared() * kOutputs + o];
        sums[o] = std::fma(static_cast<float>(sum), from_bfloat16(scale), sums[o]);
      }
    }
    for (int64_t o = 0; o < kOutputs; ++o) {
      const int64_t at = block.index * kOutputs + o;
      const float exact = std::fma(-block.rows.zeros[row], w.sums[at], sums[o]);
      out[row * w.outputs + at] = std::fma(exact, block.rows.scales[row], w.bias[at]);
    }
  }
}

#if defined(__x86_64__)
#define ETDEPLOY_AVX2 __attribute__((target("avx2,fma")))
#define ETDEPLOY_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")))

ETDEPLOY_AVX2 void round_row_avx2(const float* x, int64_t size, int8_t* to, int32_t* excess,
                                  Steps& steps) {
  __m256 low = _mm256_setzero_ps(), high = low;
  for (int64_t i = 0; i < size; i += 8) {
    const __m256 numbers = _mm256_loadu_ps(x + i);
    low = _mm256_min_ps(low, numbers);
    high = _mm256_max_ps(high, numbers);
  }
  float lows[8], highs[8];
  _mm256_storeu_ps(lows, low);
  _mm256_storeu_ps(highs, high);
  steps = steps_between(*std::min_element(lows, lows + 8), *std::max_element(highs, highs + 8));
  const __m256 by = _mm256_set1_ps(1 / steps.scale);
  const __m256i zero = _mm256_set1_epi32(static_cast<int32_t>(steps.zero));
  // Packing interleaves the 128-bit halves of its operands.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int64_t i = 0; i < size; i += kInputs) {
    __m256i whole[4];
    ETDEPLOY_UNROLL
    for (int j = 0; j < 4; ++j) {
      const __m256 numbers = _mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * j), by);
      whole[j] = _mm256_add_epi32(_mm256_cvtps_epi32(numbers), zero);
    }
    const __m256i first = _mm256_packs_epi32(whole[0], whole[1]);
    const __m256i second = _mm256_packs_epi32(whole[2], whole[3]);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), bytes);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(8));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    excess[i / kInputs] = _mm_cvtsi128_si32(sum);
  }
}

// With few rows, memory limits the product, and the processor's own prefetching ends at each page.
ETDEPLOY_INLINE void prefetch(const uint8_t* values) {
  constexpr int64_t kAhead = 4096;
  for (int64_t line = 0; line < kBytes; line += 64) {
    __builtin_prefetch(values + kAhead + line);
  }
}

// Eight outputs, the second half of the block if `half`, of ROWS rows. Two products of weights up to
// 15 with bytes fit 16 bits, and so do the sums of eight such pairs.
template <int ROWS>
ETDEPLOY_AVX2 void rows_avx2(const Block& block, int64_t half, int64_t row, float* out) {
  const Weights& w = block.weights;
  const int64_t blocks = block.blocks();
  const uint8_t* values = block.values() + half * 32;
  const uint16_t* scales = block.scales() + half * 8;
  const int8_t* x = block.rows.values + row * w.inputs;
  const int32_t* excess = block.rows.excess + row * blocks;
  const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  __m256 sums[ROWS];
  ETDEPLOY_UNROLL
  for (int r = 0; r < ROWS; ++r) {
    sums[r] = _mm256_setzero_ps();
  }
  for (int64_t b = 0, left = block.shared(); b < blocks; ++b) {
    if (ROWS <= 2 && half == 0) {
      prefetch(values);
    }
    __m256i whole[ROWS];
    ETDEPLOY_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      whole[r] = _mm256_setzero_si256();
    }
    ETDEPLOY_UNROLL
    for (int run = 0; run < 4; ++run) {
      const __m256i both =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + run * kOutputs * 4));
      const __m256i first = _mm256_and_si256(both, low);
      const __m256i second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
      ETDEPLOY_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        int32_t four[2];
        std::memcpy(four, x + r * w.inputs + run * 8, sizeof four);
        const __m256i a = _mm256_maddubs_epi16(first, _mm256_set1_epi32(four[0]));
        const __m256i c = _mm256_maddubs_epi16(second, _mm256_set1_epi32(four[1]));
        whole[r] = _mm256_add_epi16(_mm256_add_epi16(whole[r], a), c);
      }
    }
    const __m256i wide =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
    const __m256 scale = _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    ETDEPLOY_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      const __m256i exact = _mm256_sub_epi32(_mm256_madd_epi16(whole[r], ones),
                                             _mm256_set1_epi32(excess[r * blocks]));
      sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), scale, sums[r]);
    }
    values += kBytes;
    x += kInputs;
    excess += 1;
    if (--left == 0) {
      scales += kOutputs;
      left = block.shared();
    }
  }
  const int64_t at = block.index * kOutputs + half * 8;
  const __m256 all = _mm256_loadu_ps(w.sums + at), bias = _mm256_loadu_ps(w.bias + at);
  ETDEPLOY_UNROLL
  for (int r = 0; r < ROWS; ++r) {
    const __m256 zero = _mm256_set1_ps(block.rows.zeros[row + r]);
    const __m256 exact = _mm256_fnmadd_ps(zero, all, sums[r]);
    _mm256_storeu_ps(out + (row + r) * w.outputs + at,
                     _mm256_fmadd_ps(exact, _mm256_set1_ps(block.rows.scales[row + r]), bias));
  }
}

ETDEPLOY_AVX2 void multiply_avx2(const Block& block, int64_t row, int64_t end, float* out) {
  for (int64_t half = 0; half < 2; ++half) {
    int64_t r = row;
    for (; r + 4 <= end; r += 4) {
      rows_avx2<4>(block, half, r, out);
    }
    for (; r + 2 <= end; r += 2) {
      rows_avx2<2>(block, half, r, out);
    }
    for (; r < end; ++r) {
      rows_avx2<1>(block, half, r, out);
    }
  }
}

// GCC 12 warns of operands that its intrinsics leave undefined on purpose (its bug 105593).
#ifndef __clang__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
// The block's outputs, of ROWS rows.
template <int ROWS>
ETDEPLOY_VNNI void rows_vnni(const Block& block, int64_t row, float* out) {
  const Weights& w = block.weights;
  const int64_t blocks = block.blocks();
  const uint8_t* values = block.values();
  const uint16_t* scales = block.scales();
  const int8_t* x = block.rows.values + row * w.inputs;
  const int32_t* excess = block.rows.excess + row * blocks;
  const __m512i low = _mm512_set1_epi8(15);
  __m512 sums[ROWS];
  ETDEPLOY_UNROLL
  for (int r = 0; r < ROWS; ++r) {
    sums[r] = _mm512_setzero_ps();
  }
  for (int64_t b = 0, left = block.shared(); b < blocks; ++b) {
    if (ROWS <= 2) {
      prefetch(values);
    }
    __m512i whole[ROWS];
    ETDEPLOY_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      whole[r] = _mm512_set1_epi32(-excess[r * blocks]);
    }
    ETDEPLOY_UNROLL
    for (int run = 0; run < 4; ++run) {
      const __m512i both = _mm512_loadu_si512(values + run * kOutputs * 4);
      const __m512i first = _mm512_and_si512(both, low);
      const __m512i second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
      ETDEPLOY_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        int32_t four[2];
        std::memcpy(four, x + r * w.inputs + run * 8, sizeof four);
        whole[r] = _mm512_dpbusd_epi32(whole[r], first, _mm512_set1_epi32(four[0]));
        whole[r] = _mm512_dpbusd_epi32(whole[r], second, _mm512_set1_epi32(four[1]));
      }
    }
    const __m512i wide =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
    const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
    ETDEPLOY_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[r]), scale, sums[r]);
    }
    values += kBytes;
    x += kInputs;
    excess += 1;
    if (--left == 0) {
      scales += kOutputs;
      left = block.shared();
    }
  }
  const int64_t at = block.index * kOutputs;
  const __m512 all = _mm512_loadu_ps(w.sums + at), bias = _mm512_loadu_ps(w.bias + at);
  ETDEPLOY_UNROLL
  for (int r = 0; r < ROWS; ++r) {
    const __m512 zero = _mm512_set1_ps(block.rows.zeros[row + r]);
    const __m512 exact = _mm512_fnmadd_ps(zero, all, sums[r]);
    _mm512_storeu_ps(out + (row + r) * w.outputs + at,
                     _mm512_fmadd_ps(exact, _mm512_set1_ps(block.rows.scales[row + r]), bias));
  }
}

ETDEPLOY_VNNI void multiply_vnni(const Block& block, int64_t row, int64_t end, float* out) {
  for (; row + 8 <= end; row += 8) {
    rows_vnni<8>(block, row, out);
  }
  for (; row + 4 <= end; row += 4) {
    rows_vnni<4>(block, row, out);
  }
  for (; row + 2 <= end; row += 2) {
    rows_vnni<2>(block, row, out);
  }
  for (; row < end; ++row) {
    rows_vnni<1>(block, row, out);
  }
}
#ifndef __clang__
#pragma GCC diagnostic pop
#endif
#endif

// What this processor computes with.
struct Set {
  void (*round)(const float*, int64_t, int8_t*, int32_t*, Steps&) = round_row;
  void (*multiply)(const Block&, int64_t, int64_t, float*) = multiply_plain;
};

Set chosen_set() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni")) {
    return {round_row_avx2, multiply_vnni};
  }
  if (avx2) {
    return {round_row_avx2, multiply_avx2};
  }
#endif
  return {};
}

thread_local Memory<int32_t> memory;

} // namespace

bool multiply(const Weights& weights, const float* x, int64_t rows, float* out) {
  static const Set set = chosen_set();
  const int64_t inputs = weights.inputs, blocks = inputs / kInputs;
  int32_t* const words = memory.of(rows * (inputs / 4 + blocks + 2));
  if (words == nullptr) {
    return false;
  }
  int8_t* const values = reinterpret_cast<int8_t*>(words);
  int32_t* const excess = words + rows * inputs / 4;
  float* const scales = reinterpret_cast<float*>(excess + rows * blocks);
  float* const zeros = scales + rows;
  run_rows(rows, inputs, [&](size_t row) {
    Steps steps;
    set.round(x + row * inputs, inputs, values + row * inputs, excess + row * blocks, steps);
    scales[row] = steps.scale;
    zeros[row] = steps.zero;
  });
  const Rounded rounded{values, excess, scales, zeros};
  const int64_t outputs = weights.outputs / kOutputs;
  const bool threads = rows * inputs * weights.outputs >= kProducts;
  const auto parts = static_cast<int64_t>(thread_count()) > 1 && threads
      ? std::min<int64_t>(outputs, kParts * thread_count())
      : 1;
  run(parts, threads, [&](size_t part) {
    const int64_t begin = part * outputs / parts, end = (part + 1) * outputs / parts;
    for (int64_t index = begin; index < end; ++index) {
      set.multiply({weights, rounded, index}, 0, rows, out);
    }
  });
  return true;
}

} // namespace etdeploy
