// Rows of floats, rounded to 8 bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "linear.h"
#include "vectors.h"

namespace etdeploy {

// Rows in 8 bits. `offsets` are what makes up for 8 that was added to each weight: -8 times the sum of
// each block of 32 numbers. `totals` are the sums of a row's offsets.
struct Rounded {
  const int8_t* values; // (rows, inputs)
  const int32_t* offsets; // (rows, inputs / 32)
  const int32_t* totals;
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

inline void round_row(const float* x, int64_t size, int8_t* to, int32_t* offsets, Steps& steps) {
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
    offsets[i / kInputs] = -8 * sum;
  }
}

#if defined(__x86_64__)
#define ETDEPLOY_AVX2 __attribute__((target("avx2,fma")))
#define ETDEPLOY_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")))

// Around what uses AVX-512: GCC 12 warns of operands that its intrinsics leave undefined on purpose
// (its bug 105593).
#ifdef __clang__
#define ETDEPLOY_UNDEFINED_BEGIN
#define ETDEPLOY_UNDEFINED_END
#else
#define ETDEPLOY_UNDEFINED_BEGIN                                \
  _Pragma("GCC diagnostic push")                                \
  _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"") \
  _Pragma("GCC diagnostic ignored \"-Wuninitialized\"")
#define ETDEPLOY_UNDEFINED_END _Pragma("GCC diagnostic pop")
#endif

// Four bytes as a number that is broadcast straight from memory: GCC would load eight that are copied
// to an array into one register, and need three instructions for each four.
typedef int32_t FourBytes __attribute__((may_alias, aligned(1)));

ETDEPLOY_INLINE int32_t four(const int8_t* from) {
  return *reinterpret_cast<const FourBytes*>(from);
}

// Keeps GCC from computing all products before it adds any, for which registers do not suffice.
#define ETDEPLOY_ADDED(vector) asm("" : "+x"(vector))

ETDEPLOY_AVX2 inline void round_row_avx2(const float* x, int64_t size, int8_t* to, int32_t* offsets,
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
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(-8));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    offsets[i / kInputs] = _mm_cvtsi128_si32(sum);
  }
}
#endif

// Loads weights that are read next into the cache. With few rows, memory limits the product, and the
// processor's own prefetching ends at each page, and with each of the rows that are read side by side.
ETDEPLOY_INLINE void prefetch(const void* next, int64_t count) {
  for (int64_t line = 0; line < count; line += 64) {
    __builtin_prefetch(static_cast<const char*>(next) + line, 0, 2);
  }
}

// Some rows of sixteen outputs, or of thirty-two.
template <typename Weights>
struct Block {
  const Weights& weights;
  const Rounded& rows;
  int64_t count; // of rows
  int64_t index; // of the first sixteen outputs
  bool pair;

  int64_t output() const { return index * kOutputs; }
  const int8_t* row(int64_t number) const { return rows.values + number * weights.inputs; }
  Block second() const { return {weights, rows, count, index + 1, false}; }
};

// Calls Tile::compute<ROWS>(block, row, out) for all rows, the last time with fewer.
template <typename Tile, int ROWS, typename Weights>
void in_tiles(const Block<Weights>& block, int64_t row, float* out) {
  for (; row + ROWS <= block.count; row += ROWS) {
    Tile::template compute<ROWS>(block, row, out);
  }
  if constexpr (ROWS > 1) {
    in_tiles<Tile, ROWS - 1>(block, row, out);
  }
}

// The same for instructions that take sixteen outputs at most.
template <typename Tile, int ROWS, typename Weights>
void in_single_tiles(const Block<Weights>& block, int64_t row, float* out) {
  in_tiles<Tile, ROWS>(block, row, out);
  if (block.pair) {
    in_tiles<Tile, ROWS>(block.second(), row, out);
  }
}

} // namespace etdeploy
