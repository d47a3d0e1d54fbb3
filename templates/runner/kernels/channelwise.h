// Products of rounded rows with weights of 8 bits, of which each output shares a scale. They are read
// where they are, row by row, since a model may look up its embeddings in them, too.
#pragma once

#include <cmath>

#include "rounding.h"

namespace etdeploy {

// Outputs of which a row's sums stay in registers.
constexpr int64_t kAtOnce = 4;

struct ChannelwisePlain {
  template <int ROWS>
  static void compute(const Block<ChannelwiseWeights>& block, int64_t row, float* out) {
    static_assert(ROWS == 1);
    const ChannelwiseWeights& w = block.weights;
    const int8_t* const x = block.row(row);
    for (int64_t at = block.output(); at < block.output() + kOutputs; ++at) {
      int32_t sum = 0;
      for (int64_t i = 0; i < w.inputs; ++i) {
        sum += w.values[at * w.inputs + i] * x[i];
      }
      const float scaled = static_cast<float>(sum) * w.scales[at];
      const float exact = std::fma(-block.rows.zeros[row], w.sums[at], scaled);
      out[row * w.outputs + at] = std::fma(exact, block.rows.scales[row], w.bias[at]);
    }
  }
};

#if defined(__x86_64__)
// A row's outputs from `at` on, of the sums of products in the lanes of `sums`.
ETDEPLOY_AVX2 ETDEPLOY_INLINE void store_four(const Block<ChannelwiseWeights>& block, int64_t row,
                                              int64_t at, const __m256i (&sums)[kAtOnce],
                                              int32_t offset, float* out) {
  const ChannelwiseWeights& w = block.weights;
  const __m256i pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]),
                                          _mm256_hadd_epi32(sums[2], sums[3]));
  const __m128i whole = _mm_add_epi32(
      _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)),
      _mm_set1_epi32(offset));
  const __m128 scaled = _mm_mul_ps(_mm_cvtepi32_ps(whole), _mm_loadu_ps(w.scales + at));
  const __m128 exact =
      _mm_fnmadd_ps(_mm_set1_ps(block.rows.zeros[row]), _mm_loadu_ps(w.sums + at), scaled);
  _mm_storeu_ps(out + row * w.outputs + at,
                _mm_fmadd_ps(exact, _mm_set1_ps(block.rows.scales[row]),
                             _mm_loadu_ps(w.bias + at)));
}

// Products of bytes do not fit 16 bits in pairs: both sides are widened.
struct ChannelwiseAvx2 {
  template <int ROWS>
  ETDEPLOY_AVX2 static void compute(const Block<ChannelwiseWeights>& block, int64_t row,
                                    float* out) {
    for (int64_t at = 0; at < kOutputs; at += kAtOnce) {
      compute_four<ROWS>(block, block.output() + at, row, out);
    }
  }

 private:
  ETDEPLOY_AVX2 ETDEPLOY_INLINE static __m256i widened(const int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }

  template <int ROWS>
  ETDEPLOY_AVX2 static void compute_four(const Block<ChannelwiseWeights>& block, int64_t at,
                                         int64_t row, float* out) {
    const int64_t inputs = block.weights.inputs;
    const int8_t* const values = block.weights.values + at * inputs;
    const int8_t* const x = block.row(row);
    __m256i sums[ROWS][kAtOnce];
    ETDEPLOY_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      ETDEPLOY_UNROLL
      for (int o = 0; o < kAtOnce; ++o) {
        sums[r][o] = _mm256_setzero_si256();
      }
    }
    for (int64_t i = 0; i < inputs; i += 16) {
      if (row == 0) {
        prefetch(values + kAtOnce * (inputs + i), kAtOnce * 16);
      }
      __m256i weights[kAtOnce];
      ETDEPLOY_UNROLL
      for (int o = 0; o < kAtOnce; ++o) {
        weights[o] = widened(values + o * inputs + i);
      }
      ETDEPLOY_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const __m256i numbers = widened(x + r * inputs + i);
        ETDEPLOY_UNROLL
        for (int o = 0; o < kAtOnce; ++o) {
          sums[r][o] = _mm256_add_epi32(sums[r][o], _mm256_madd_epi16(numbers, weights[o]));
        }
      }
    }
    ETDEPLOY_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      store_four(block, row + r, at, sums[r], 0, out);
    }
  }
};

ETDEPLOY_UNDEFINED_BEGIN
// The instruction takes one side without a sign, so 128 is added to each weight.
struct ChannelwiseVnni {
  template <int ROWS>
  ETDEPLOY_VNNI static void compute(const Block<ChannelwiseWeights>& block, int64_t row,
                                    float* out) {
    for (int64_t at = 0; at < kOutputs; at += kAtOnce) {
      compute_four<ROWS>(block, block.output() + at, row, out);
    }
  }

 private:
  template <int ROWS>
  ETDEPLOY_VNNI static void compute_four(const Block<ChannelwiseWeights>& block, int64_t at,
                                         int64_t row, float* out) {
    const int64_t inputs = block.weights.inputs;
    const int8_t* const values = block.weights.values + at * inputs;
    const int8_t* const x = block.row(row);
    const __m512i sign = _mm512_set1_epi8(-128);
    __m512i sums[ROWS][kAtOnce];
    ETDEPLOY_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      ETDEPLOY_UNROLL
      for (int o = 0; o < kAtOnce; ++o) {
        sums[r][o] = _mm512_setzero_si512();
      }
    }
    for (int64_t i = 0; i < inputs; i += 64) {
      if (row == 0) {
        prefetch(values + kAtOnce * (inputs + i), kAtOnce * 64);
      }
      const __mmask64 there = inputs - i >= 64 ? ~0ULL : 0xffffffffULL;
      __m512i weights[kAtOnce];
      ETDEPLOY_UNROLL
      for (int o = 0; o < kAtOnce; ++o) {
        const __m512i bytes = _mm512_maskz_loadu_epi8(there, values + o * inputs + i);
        weights[o] = _mm512_xor_si512(bytes, sign);
      }
      ETDEPLOY_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const __m512i numbers = _mm512_maskz_loadu_epi8(there, x + r * inputs + i);
        ETDEPLOY_UNROLL
        for (int o = 0; o < kAtOnce; ++o) {
          sums[r][o] = _mm512_dpbusd_epi32(sums[r][o], weights[o], numbers);
        }
      }
    }
    ETDEPLOY_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      __m256i halves[kAtOnce];
      ETDEPLOY_UNROLL
      for (int o = 0; o < kAtOnce; ++o) {
        halves[o] = _mm256_add_epi32(_mm512_castsi512_si256(sums[r][o]),
                                     _mm512_extracti64x4_epi64(sums[r][o], 1));
      }
      store_four(block, row + r, at, halves, 16 * block.rows.totals[row + r], out);
    }
  }
};
ETDEPLOY_UNDEFINED_END
#endif

} // namespace etdeploy
