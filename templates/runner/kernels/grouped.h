// Products of rounded rows with weights of 4 bits, of which each group shares a scale.
#pragma once

#include <cmath>
#include <cstring>

#include "rounding.h"

namespace etdeploy {

// Where the weights of a block of outputs are.
struct Groups {
  int64_t blocks; // of inputs
  int64_t shared; // blocks of inputs that share a scale
  const uint8_t* values;
  const uint16_t* scales;

  explicit Groups(const Block<GroupedWeights>& block)
      : blocks(block.weights.inputs / kInputs), shared(blocks / block.weights.groups),
        values(block.weights.values + block.index * blocks * kBytes),
        scales(block.weights.scales + block.output() * block.weights.groups) {}
};

inline float from_bfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float number;
  std::memcpy(&number, &wide, sizeof number);
  return number;
}

struct GroupedPlain {
  template <int ROWS>
  static void compute(const Block<GroupedWeights>& block, int64_t row, float* out) {
    static_assert(ROWS == 1);
    const GroupedWeights& w = block.weights;
    const Groups groups(block);
    float sums[kOutputs] = {};
    for (int64_t b = 0; b < groups.blocks; ++b) {
      const uint8_t* const values = groups.values + b * kBytes;
      const int8_t* const x = block.row(row) + b * kInputs;
      for (int64_t o = 0; o < kOutputs; ++o) {
        int32_t sum = block.rows.offsets[row * groups.blocks + b];
        for (int64_t run = 0; run < 4; ++run) {
          for (int64_t i = 0; i < 4; ++i) {
            const uint8_t both = values[(run * kOutputs + o) * 4 + i];
            sum += (both & 15) * x[run * 8 + i] + (both >> 4) * x[run * 8 + 4 + i];
          }
        }
        const uint16_t scale = groups.scales[b / groups.shared * kOutputs + o];
        sums[o] = std::fma(static_cast<float>(sum), from_bfloat16(scale), sums[o]);
      }
    }
    for (int64_t o = 0; o < kOutputs; ++o) {
      const int64_t at = block.output() + o;
      const float exact = std::fma(-block.rows.zeros[row], w.sums[at], sums[o]);
      out[row * w.outputs + at] = std::fma(exact, block.rows.scales[row], w.bias[at]);
    }
  }
};

#if defined(__x86_64__)
// Two products of weights up to 15 with bytes fit 16 bits, and so do the sums of eight such pairs.
struct GroupedAvx2 {
  template <int ROWS>
  ETDEPLOY_AVX2 static void compute(const Block<GroupedWeights>& block, int64_t row, float* out) {
    if constexpr (ROWS <= 2) {
      compute_parts<ROWS, 2>(block, 0, row, out);
    } else {
      compute_parts<ROWS, 1>(block, 0, row, out);
      compute_parts<ROWS, 1>(block, 8, row, out);
    }
  }

 private:
  // As many times eight outputs as PARTS, from `first` of the block on.
  template <int ROWS, int PARTS>
  ETDEPLOY_AVX2 static void compute_parts(const Block<GroupedWeights>& block, int64_t first,
                                          int64_t row, float* out) {
    const GroupedWeights& w = block.weights;
    const Groups groups(block);
    const int64_t blocks = groups.blocks;
    const uint8_t* values = groups.values + first * 4;
    const uint16_t* scales = groups.scales + first;
    const int8_t* x = block.row(row);
    const int32_t* offsets = block.rows.offsets + row * blocks;
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256 sums[ROWS][PARTS];
    ETDEPLOY_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      ETDEPLOY_UNROLL
      for (int p = 0; p < PARTS; ++p) {
        sums[r][p] = _mm256_setzero_ps();
      }
    }
    for (int64_t b = 0, left = groups.shared; b < blocks; ++b) {
      if (row == 0 && first == 0) {
        prefetch(values + blocks * kBytes, kBytes);
      }
      __m256i whole[ROWS][PARTS];
      ETDEPLOY_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        ETDEPLOY_UNROLL
        for (int p = 0; p < PARTS; ++p) {
          whole[r][p] = _mm256_setzero_si256();
        }
      }
      ETDEPLOY_UNROLL
      for (int run = 0; run < 4; ++run) {
        __m256i lows[PARTS], highs[PARTS];
        ETDEPLOY_UNROLL
        for (int p = 0; p < PARTS; ++p) {
          const __m256i both = _mm256_loadu_si256(
              reinterpret_cast<const __m256i*>(values + run * kOutputs * 4 + p * 32));
          lows[p] = _mm256_and_si256(both, low);
          highs[p] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
        }
        ETDEPLOY_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          const int8_t* const eight = x + r * w.inputs + run * 8;
          const __m256i a = _mm256_set1_epi32(four(eight)), c = _mm256_set1_epi32(four(eight + 4));
          ETDEPLOY_UNROLL
          for (int p = 0; p < PARTS; ++p) {
            whole[r][p] = _mm256_add_epi16(whole[r][p], _mm256_maddubs_epi16(lows[p], a));
            whole[r][p] = _mm256_add_epi16(whole[r][p], _mm256_maddubs_epi16(highs[p], c));
            ETDEPLOY_ADDED(whole[r][p]);
          }
        }
      }
      ETDEPLOY_UNROLL
      for (int p = 0; p < PARTS; ++p) {
        const __m256i wide = _mm256_cvtepu16_epi32(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + p * 8)));
        const __m256 scale = _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
        ETDEPLOY_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          const __m256i exact = _mm256_add_epi32(_mm256_madd_epi16(whole[r][p], ones),
                                                 _mm256_set1_epi32(offsets[r * blocks]));
          sums[r][p] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), scale, sums[r][p]);
        }
      }
      values += kBytes;
      x += kInputs;
      offsets += 1;
      if (--left == 0) {
        scales += kOutputs;
        left = groups.shared;
      }
    }
    ETDEPLOY_UNROLL
    for (int p = 0; p < PARTS; ++p) {
      const int64_t at = block.output() + first + p * 8;
      const __m256 all = _mm256_loadu_ps(w.sums + at), bias = _mm256_loadu_ps(w.bias + at);
      ETDEPLOY_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const __m256 zero = _mm256_set1_ps(block.rows.zeros[row + r]);
        const __m256 exact = _mm256_fnmadd_ps(zero, all, sums[r][p]);
        _mm256_storeu_ps(out + (row + r) * w.outputs + at,
                         _mm256_fmadd_ps(exact, _mm256_set1_ps(block.rows.scales[row + r]), bias));
      }
    }
  }
};

ETDEPLOY_UNDEFINED_BEGIN
struct GroupedVnni {
  template <int ROWS>
  ETDEPLOY_VNNI static void compute(const Block<GroupedWeights>& block, int64_t row, float* out) {
    if (block.pair) {
      compute_parts<ROWS, 2>(block, row, out);
    } else {
      compute_parts<ROWS, 1>(block, row, out);
    }
  }

 private:
  // As many times sixteen outputs as PARTS: two share what is loaded of a row.
  template <int ROWS, int PARTS>
  ETDEPLOY_VNNI static void compute_parts(const Block<GroupedWeights>& block, int64_t row,
                                          float* out) {
    const GroupedWeights& w = block.weights;
    const Groups groups(block);
    const int64_t blocks = groups.blocks;
    const uint8_t* values = groups.values;
    const uint16_t* scales = groups.scales;
    const int8_t* x = block.row(row);
    const int32_t* offsets = block.rows.offsets + row * blocks;
    const __m512i low = _mm512_set1_epi8(15);
    __m512 sums[ROWS][PARTS];
    ETDEPLOY_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      ETDEPLOY_UNROLL
      for (int p = 0; p < PARTS; ++p) {
        sums[r][p] = _mm512_setzero_ps();
      }
    }
    for (int64_t b = 0, left = groups.shared; b < blocks; ++b) {
      __m512i whole[ROWS][PARTS];
      if (row == 0) {
        prefetch(groups.values + PARTS * (blocks + b) * kBytes, PARTS * kBytes);
      }
      ETDEPLOY_UNROLL
      for (int p = 0; p < PARTS; ++p) {
        ETDEPLOY_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          whole[r][p] = _mm512_set1_epi32(offsets[r * blocks]);
        }
      }
      ETDEPLOY_UNROLL
      for (int run = 0; run < 4; ++run) {
        __m512i lows[PARTS], highs[PARTS];
        ETDEPLOY_UNROLL
        for (int p = 0; p < PARTS; ++p) {
          const __m512i both =
              _mm512_loadu_si512(values + p * blocks * kBytes + run * kOutputs * 4);
          lows[p] = _mm512_and_si512(both, low);
          highs[p] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        }
        ETDEPLOY_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          const int8_t* const eight = x + r * w.inputs + run * 8;
          const __m512i a = _mm512_set1_epi32(four(eight)), c = _mm512_set1_epi32(four(eight + 4));
          ETDEPLOY_UNROLL
          for (int p = 0; p < PARTS; ++p) {
            whole[r][p] = _mm512_dpbusd_epi32(whole[r][p], lows[p], a);
            whole[r][p] = _mm512_dpbusd_epi32(whole[r][p], highs[p], c);
          }
        }
      }
      ETDEPLOY_UNROLL
      for (int p = 0; p < PARTS; ++p) {
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(
            reinterpret_cast<const __m256i*>(scales + p * w.groups * kOutputs)));
        const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
        ETDEPLOY_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          sums[r][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[r][p]), scale, sums[r][p]);
        }
      }
      values += kBytes;
      x += kInputs;
      offsets += 1;
      if (--left == 0) {
        scales += kOutputs;
        left = groups.shared;
      }
    }
    ETDEPLOY_UNROLL
    for (int p = 0; p < PARTS; ++p) {
      const int64_t at = block.output() + p * kOutputs;
      const __m512 all = _mm512_loadu_ps(w.sums + at), bias = _mm512_loadu_ps(w.bias + at);
      ETDEPLOY_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const __m512 zero = _mm512_set1_ps(block.rows.zeros[row + r]);
        const __m512 exact = _mm512_fnmadd_ps(zero, all, sums[r][p]);
        _mm512_storeu_ps(out + (row + r) * w.outputs + at,
                         _mm512_fmadd_ps(exact, _mm512_set1_ps(block.rows.scales[row + r]), bias));
      }
    }
  }
};
ETDEPLOY_UNDEFINED_END
#endif

} // namespace etdeploy
