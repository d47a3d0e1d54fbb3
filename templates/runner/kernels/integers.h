// Products of the bytes of a cache with words, whole numbers of 16 bits: queries and weights are
// rounded to these, a row of them with a scale of its own. All sums are exact, so that each
// instruction set gives the same bits, in whichever order and however many rows at once.
//
// An error of a word is 1/257 of that of a byte.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "products.h"

#ifdef __aarch64__
#include <arm_neon.h>
#endif

namespace etdeploy {

// The largest magnitude of a word, 127 * 256 + 127: it is 256 times a byte, and another one.
constexpr float kMostWord = 32639;
// Sums of so many products of a word and a byte fit in 32 bits.
constexpr int64_t kMostDepth = 512;
// The number of bytes of a row that instructions take at once.
constexpr int64_t kBytesAtOnce = 16;

// Rows of words, in the order in which an instruction set takes them, and what each is multiplied by.
struct Words {
  int8_t* data;
  int64_t stride; // in bytes
  float* scales;

  Words from(int64_t row) const { return {data + row * stride, stride, scales + row}; }
};

inline bool fits_integers(int64_t size) {
  return size % kBytesAtOnce == 0 && size <= kMostDepth;
}

// COUNT rows of bytes from one on. Those behind the last one are the last one again.
template <int COUNT>
struct SomeRows {
  const int8_t* row[COUNT];

  ETDEPLOY_INLINE SomeRows(RowsOf<int8_t> all, int64_t first, int64_t count) {
    const int8_t* const from = all.data + first * all.stride;
    if (first + COUNT <= count) {
      for (int i = 0; i < COUNT; ++i) {
        row[i] = from + i * all.stride;
      }
    } else {
      for (int i = 0; i < COUNT; ++i) {
        row[i] = from + std::min<int64_t>(i, count - 1 - first) * all.stride;
      }
    }
  }
};

// An instruction set has
//   words(from, size, inverse, to): numbers times `inverse`, to the nearest words, in its order;
//   score<ROWS>(queries, keys, count, size, scales, to, stride): products of rows of words and of
//     bytes, times both scales; up to seven more columns are written than `count`;
//   add<ROWS>(weights, values, count, size, to, stride): adds to `to` what rows of words give, as
//     weights of `count` rows of bytes; words behind `count` are 0;
// and how many rows it takes at most. This one has nothing.
struct NoIntegers {};

template <typename Set, typename Element>
constexpr bool kHasIntegers = std::is_same_v<Element, int8_t> && !std::is_same_v<Set, NoIntegers>;

template <typename Set, int ROWS = Set::kScoreRows>
void score_integers(Words queries, int64_t rows, RowsOf<int8_t> keys, int64_t count, int64_t size,
                    const float* scales, float* to, int64_t stride) {
  for (; rows >= ROWS; rows -= ROWS, queries = queries.from(ROWS), to += ROWS * stride) {
    Set::template score<ROWS>(queries, keys, count, size, scales, to, stride);
  }
  if constexpr (ROWS > 1) {
    score_integers<Set, ROWS - 1>(queries, rows, keys, count, size, scales, to, stride);
  }
}

template <typename Set, int ROWS = Set::kAddRows>
void add_integers(Words weights, int64_t rows, RowsOf<int8_t> values, int64_t count, int64_t size,
                  float* to, int64_t stride) {
  for (; rows >= ROWS; rows -= ROWS, weights = weights.from(ROWS), to += ROWS * stride) {
    Set::template add<ROWS>(weights, values, count, size, to, stride);
  }
  if constexpr (ROWS > 1) {
    add_integers<Set, ROWS - 1>(weights, rows, values, count, size, to, stride);
  }
}

// Of numbers whose count is a multiple of 4.
ETDEPLOY_INLINE bool all_finite(const float* from, int64_t size) {
  Floats<4> not_finite = {}, some;
  for (int64_t i = 0; i < size; i += 4) {
    load<4>(some, from + i);
    not_finite += some * 0.0f;
  }
  return sum<4>(not_finite) == 0;
}

// Makes words of a row, whose length is a multiple of 4. What is not finite makes the row's scale NaN.
template <typename Set>
ETDEPLOY_INLINE void make_words(const float* from, int64_t size, bool finite, Words to) {
  Floats<4> most = {}, some;
  for (int64_t i = 0; i < size; i += 4) {
    load<4>(some, from + i);
    some = some > 0 ? some : -some;
    most = some > most ? some : most;
  }
  const float high = greatest<4>(most);
  Set::words(from, size, high > 0 ? kMostWord / high : 0, to.data);
  *to.scales = finite ? high / kMostWord : NAN;
}

#ifdef __aarch64__
// Without more than Armv8.0: words in their order.
struct Neon {
  static constexpr int kScoreRows = 3, kAddRows = 4;

  ETDEPLOY_INLINE static int16x8_t eight(const float* from, float inverse) {
    const int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(from), inverse));
    const int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(from + 4), inverse));
    return vqmovn_high_s32(vqmovn_s32(low), high);
  }

  static void words(const float* from, int64_t size, float inverse, int8_t* to) {
    for (int64_t i = 0; i < size; i += 8) {
      vst1q_s8(to + 2 * i, vreinterpretq_s8_s16(eight(from + i, inverse)));
    }
  }

  ETDEPLOY_INLINE static int16x8_t load(const int8_t* from) {
    return vreinterpretq_s16_s8(vld1q_s8(from));
  }

  // Four scores of whole numbers.
  ETDEPLOY_INLINE static void put(int32x4_t sums, float row, const float* columns, float* to) {
    vst1q_f32(to, vmulq_f32(vmulq_n_f32(vcvtq_f32_s32(sums), row), vld1q_f32(columns)));
  }

  ETDEPLOY_INLINE static void put_more(int32x4_t sums, float scale, float* to) {
    vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), vcvtq_f32_s32(sums), scale));
  }

  template <int ROWS>
  static void score(const Words& queries, RowsOf<int8_t> keys, int64_t count, int64_t size,
                    const float* scales, float* to, int64_t stride) {
    for (int64_t j = 0; j < count; j += 4) {
      const SomeRows<4> some(keys, j, count);
      int32x4_t sums[ROWS][4] = {};
      for (int64_t i = 0; i < size; i += 16) {
        int16x8_t query[ROWS][2];
        ETDEPLOY_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          query[r][0] = load(queries.data + r * queries.stride + 2 * i);
          query[r][1] = load(queries.data + r * queries.stride + 2 * i + 16);
        }
        ETDEPLOY_UNROLL
        for (int k = 0; k < 4; ++k) {
          const int8x16_t bytes = vld1q_s8(some.row[k] + i);
          const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
          ETDEPLOY_UNROLL
          for (int r = 0; r < ROWS; ++r) {
            sums[r][k] = vmlal_s16(sums[r][k], vget_low_s16(low), vget_low_s16(query[r][0]));
            sums[r][k] = vmlal_high_s16(sums[r][k], low, query[r][0]);
            sums[r][k] = vmlal_s16(sums[r][k], vget_low_s16(high), vget_low_s16(query[r][1]));
            sums[r][k] = vmlal_high_s16(sums[r][k], high, query[r][1]);
          }
        }
      }
      ETDEPLOY_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const int32x4_t two = vpaddq_s32(sums[r][0], sums[r][1]);
        const int32x4_t four = vpaddq_s32(two, vpaddq_s32(sums[r][2], sums[r][3]));
        put(four, queries.scales[r], scales + j, to + r * stride + j);
      }
    }
  }

  // Adds what one of four rows of values gives, which words behind `count` leave out.
  template <int ROWS, int LANE>
  ETDEPLOY_INLINE static void add_one(int32x4_t (&sums)[ROWS][4], const int16x4_t* weight,
                                      const int8_t* row) {
    const int8x16_t bytes = vld1q_s8(row);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    ETDEPLOY_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      sums[r][0] = vmlal_lane_s16(sums[r][0], vget_low_s16(low), weight[r], LANE);
      sums[r][1] = vmlal_high_lane_s16(sums[r][1], low, weight[r], LANE);
      sums[r][2] = vmlal_lane_s16(sums[r][2], vget_low_s16(high), weight[r], LANE);
      sums[r][3] = vmlal_high_lane_s16(sums[r][3], high, weight[r], LANE);
    }
  }

  template <int ROWS>
  static void add(const Words& weights, RowsOf<int8_t> values, int64_t count, int64_t size,
                  float* to, int64_t stride) {
    for (int64_t i = 0; i < size; i += 16) {
      int32x4_t sums[ROWS][4] = {};
      for (int64_t j = 0; j < count; j += 4) {
        const SomeRows<4> some(values, j, count);
        int16x4_t weight[ROWS];
        ETDEPLOY_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          weight[r] = vreinterpret_s16_s8(vld1_s8(weights.data + r * weights.stride + 2 * j));
        }
        add_one<ROWS, 0>(sums, weight, some.row[0] + i);
        add_one<ROWS, 1>(sums, weight, some.row[1] + i);
        add_one<ROWS, 2>(sums, weight, some.row[2] + i);
        add_one<ROWS, 3>(sums, weight, some.row[3] + i);
      }
      ETDEPLOY_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        ETDEPLOY_UNROLL
        for (int part = 0; part < 4; ++part) {
          put_more(sums[r][part], weights.scales[r], to + r * stride + i + 4 * part);
        }
      }
    }
  }
};

// What a function is compiled with for these instructions, where the compiler can do that: Clang since
// release 17. GCC inlines NEON's functions only where the target has all that its options name, so
// options beyond Armv8.0 leave these instructions out unless they name them.
#if defined(__ARM_FEATURE_DOTPROD) && defined(__ARM_FEATURE_MATMUL_INT8)
#define ETDEPLOY_DOTPROD
#define ETDEPLOY_I8MM
#elif defined(__clang__)
#if __clang_major__ >= 17 || (defined(__apple_build_version__) && __clang_major__ >= 16)
#define ETDEPLOY_DOTPROD __attribute__((target("dotprod")))
#define ETDEPLOY_I8MM __attribute__((target("dotprod,i8mm")))
#endif
#elif defined(__ARM_FEATURE_DOTPROD)
#define ETDEPLOY_DOTPROD
#define ETDEPLOY_I8MM __attribute__((target("+i8mm")))
#elif !defined(__ARM_FEATURE_CRYPTO) && !defined(__ARM_FEATURE_ATOMICS)
#define ETDEPLOY_DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#define ETDEPLOY_I8MM __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))
#endif

#ifdef ETDEPLOY_DOTPROD
// 256 times the sums of words' high bytes, and those of their low ones.
ETDEPLOY_INLINE int32x4_t joined(int32x4_t high, int32x4_t low) {
  return vaddq_s32(low, vshlq_n_s32(high, 8));
}

struct Bytes {
  int8x16_t high, low;
};

// 16 words' high bytes and their low ones, both with signs.
ETDEPLOY_INLINE Bytes split(const float* from, float inverse) {
  const int16x8_t first = Neon::eight(from, inverse), second = Neon::eight(from + 8, inverse);
  return {vrshrn_high_n_s16(vrshrn_n_s16(first, 8), second, 8),
          vuzp1q_s8(vreinterpretq_s8_s16(first), vreinterpretq_s8_s16(second))};
}

// With `sdot` (Armv8.2): the high bytes of 16 words, and their low bytes.
struct Dotprod {
  static constexpr int kScoreRows = 3, kAddRows = 4;

  static void words(const float* from, int64_t size, float inverse, int8_t* to) {
    for (int64_t i = 0; i < size; i += 16) {
      const Bytes bytes = split(from + i, inverse);
      vst1q_s8(to + 2 * i, bytes.high);
      vst1q_s8(to + 2 * i + 16, bytes.low);
    }
  }

  template <int ROWS>
  ETDEPLOY_DOTPROD static void score(const Words& queries, RowsOf<int8_t> keys, int64_t count,
                                     int64_t size, const float* scales, float* to,
                                     int64_t stride) {
    for (int64_t j = 0; j < count; j += 4) {
      const SomeRows<4> some(keys, j, count);
      int32x4_t high[ROWS][4] = {}, low[ROWS][4] = {};
      for (int64_t i = 0; i < size; i += 16) {
        int8x16_t key[4];
        ETDEPLOY_UNROLL
        for (int k = 0; k < 4; ++k) {
          key[k] = vld1q_s8(some.row[k] + i);
        }
        ETDEPLOY_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          const int8_t* const query = queries.data + r * queries.stride + 2 * i;
          const int8x16_t highs = vld1q_s8(query), lows = vld1q_s8(query + 16);
          ETDEPLOY_UNROLL
          for (int k = 0; k < 4; ++k) {
            high[r][k] = vdotq_s32(high[r][k], key[k], highs);
            low[r][k] = vdotq_s32(low[r][k], key[k], lows);
          }
        }
      }
      ETDEPLOY_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        int32x4_t sums[4];
        ETDEPLOY_UNROLL
        for (int k = 0; k < 4; ++k) {
          sums[k] = joined(high[r][k], low[r][k]);
        }
        const int32x4_t two = vpaddq_s32(sums[0], sums[1]);
        Neon::put(vpaddq_s32(two, vpaddq_s32(sums[2], sums[3])), queries.scales[r], scales + j,
                  to + r * stride + j);
      }
    }
  }

  // Adds what four rows of values give: their columns are put side by side.
  template <int ROWS, int LANE>
  ETDEPLOY_INLINE ETDEPLOY_DOTPROD static void
  add_four(int32x4_t (&high)[ROWS][2], int32x4_t (&low)[ROWS][2], const Bytes* weight,
           const SomeRows<4>& some, int64_t at) {
    int8x16_t row[4];
    ETDEPLOY_UNROLL
    for (int k = 0; k < 4; ++k) {
      row[k] = vcombine_s8(vld1_s8(some.row[k] + at), vdup_n_s8(0));
    }
    const int8x16_t even = vzip1q_s8(row[0], row[2]), odd = vzip1q_s8(row[1], row[3]);
    const int8x16_t columns[2] = {vzip1q_s8(even, odd), vzip2q_s8(even, odd)};
    ETDEPLOY_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      ETDEPLOY_UNROLL
      for (int half = 0; half < 2; ++half) {
        high[r][half] = vdotq_laneq_s32(high[r][half], columns[half], weight[r].high, LANE);
        low[r][half] = vdotq_laneq_s32(low[r][half], columns[half], weight[r].low, LANE);
      }
    }
  }

  template <int ROWS>
  ETDEPLOY_DOTPROD static void add(const Words& weights, RowsOf<int8_t> values, int64_t count,
                                   int64_t size, float* to, int64_t stride) {
    for (int64_t i = 0; i < size; i += 8) {
      int32x4_t high[ROWS][2] = {}, low[ROWS][2] = {};
      for (int64_t j = 0; j < count; j += 16) {
        Bytes weight[ROWS];
        ETDEPLOY_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          const int8_t* const words = weights.data + r * weights.stride + 2 * j;
          weight[r] = {vld1q_s8(words), vld1q_s8(words + 16)};
        }
        add_four<ROWS, 0>(high, low, weight, {values, j, count}, i);
        if (j + 4 < count) {
          add_four<ROWS, 1>(high, low, weight, {values, j + 4, count}, i);
        }
        if (j + 8 < count) {
          add_four<ROWS, 2>(high, low, weight, {values, j + 8, count}, i);
        }
        if (j + 12 < count) {
          add_four<ROWS, 3>(high, low, weight, {values, j + 12, count}, i);
        }
      }
      ETDEPLOY_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        ETDEPLOY_UNROLL
        for (int half = 0; half < 2; ++half) {
          Neon::put_more(joined(high[r][half], low[r][half]), weights.scales[r],
                         to + r * stride + i + 4 * half);
        }
      }
    }
  }
};

// With `smmla` (i8mm of Armv8.6): the high bytes of 8 words, and their low bytes, are the two rows
// of a product with two rows of keys, or two columns of values.
struct I8mm {
  static constexpr int kScoreRows = 4, kAddRows = 4;

  static void words(const float* from, int64_t size, float inverse, int8_t* to) {
    for (int64_t i = 0; i < size; i += 16) {
      const Bytes bytes = split(from + i, inverse);
      const int64x2_t high = vreinterpretq_s64_s8(bytes.high);
      const int64x2_t low = vreinterpretq_s64_s8(bytes.low);
      vst1q_s8(to + 2 * i, vreinterpretq_s8_s64(vzip1q_s64(high, low)));
      vst1q_s8(to + 2 * i + 16, vreinterpretq_s8_s64(vzip2q_s64(high, low)));
    }
  }

  // Of two pairs of columns: the first halves are the high bytes' sums.
  ETDEPLOY_INLINE static int32x4_t joined_pairs(int32x4_t first, int32x4_t second) {
    const int64x2_t a = vreinterpretq_s64_s32(first), b = vreinterpretq_s64_s32(second);
    return joined(vreinterpretq_s32_s64(vzip1q_s64(a, b)), vreinterpretq_s32_s64(vzip2q_s64(a, b)));
  }

  template <int ROWS>
  ETDEPLOY_I8MM static void score(const Words& queries, RowsOf<int8_t> keys, int64_t count,
                                  int64_t size, const float* scales, float* to, int64_t stride) {
    for (int64_t j = 0; j < count; j += 8) {
      const SomeRows<8> some(keys, j, count);
      int32x4_t sums[ROWS][4] = {};
      for (int64_t i = 0; i < size; i += 16) {
        int8x16_t query[ROWS][2];
        ETDEPLOY_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          const int8_t* const words = queries.data + r * queries.stride + 2 * i;
          query[r][0] = vld1q_s8(words);
          query[r][1] = vld1q_s8(words + 16);
        }
        ETDEPLOY_UNROLL
        for (int pair = 0; pair < 4; ++pair) {
          const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(some.row[2 * pair] + i));
          const int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(some.row[2 * pair + 1] + i));
          const int8x16_t first = vreinterpretq_s8_s64(vzip1q_s64(a, b));
          const int8x16_t second = vreinterpretq_s8_s64(vzip2q_s64(a, b));
          ETDEPLOY_UNROLL
          for (int r = 0; r < ROWS; ++r) {
            sums[r][pair] = vmmlaq_s32(sums[r][pair], query[r][0], first);
            sums[r][pair] = vmmlaq_s32(sums[r][pair], query[r][1], second);
          }
        }
      }
      ETDEPLOY_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        ETDEPLOY_UNROLL
        for (int half = 0; half < 2; ++half) {
          Neon::put(joined_pairs(sums[r][2 * half], sums[r][2 * half + 1]), queries.scales[r],
                    scales + j + 4 * half, to + r * stride + j + 4 * half);
        }
      }
    }
  }

  template <int ROWS>
  ETDEPLOY_I8MM static void add(const Words& weights, RowsOf<int8_t> values, int64_t count,
                                int64_t size, float* to, int64_t stride) {
    for (int64_t i = 0; i < size; i += 8) {
      int32x4_t sums[ROWS][4] = {};
      for (int64_t j = 0; j < count; j += 8) {
        const SomeRows<8> some(values, j, count);
        int8x16_t row[8], four[4], two[4];
        ETDEPLOY_UNROLL
        for (int k = 0; k < 8; ++k) {
          row[k] = vcombine_s8(vld1_s8(some.row[k] + i), vdup_n_s8(0));
        }
        ETDEPLOY_UNROLL
        for (int k = 0; k < 4; ++k) {
          four[k] = vzip1q_s8(row[k], row[k + 4]);
        }
        ETDEPLOY_UNROLL
        for (int k = 0; k < 2; ++k) {
          two[k] = vzip1q_s8(four[k], four[k + 2]);
          two[k + 2] = vzip2q_s8(four[k], four[k + 2]);
        }
        const int8x16_t columns[4] = {vzip1q_s8(two[0], two[1]), vzip2q_s8(two[0], two[1]),
                                      vzip1q_s8(two[2], two[3]), vzip2q_s8(two[2], two[3])};
        ETDEPLOY_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          const int8x16_t weight = vld1q_s8(weights.data + r * weights.stride + 2 * j);
          ETDEPLOY_UNROLL
          for (int pair = 0; pair < 4; ++pair) {
            sums[r][pair] = vmmlaq_s32(sums[r][pair], weight, columns[pair]);
          }
        }
      }
      ETDEPLOY_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        ETDEPLOY_UNROLL
        for (int half = 0; half < 2; ++half) {
          Neon::put_more(joined_pairs(sums[r][2 * half], sums[r][2 * half + 1]),
                         weights.scales[r], to + r * stride + i + 4 * half);
        }
      }
    }
  }
};
#endif
#endif

} // namespace etdeploy
