// Vectors of floats as GCC and Clang know them: the same code for SSE, AVX, AVX-512 and NEON.
//
// All of it is inlined, since its instructions are those of the function that it ends up in. No
// vector is passed by value, which old compilers would do in memory.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#define ETDEPLOY_INLINE inline __attribute__((always_inline))

// Before a loop over vectors that stay in registers. GCC 12 would unroll it too late, and write them
// to memory each time.
#ifdef __clang__
#define ETDEPLOY_UNROLL _Pragma("unroll")
#else
#define ETDEPLOY_UNROLL _Pragma("GCC unroll 16")
#endif

namespace etdeploy {

template <int LANES>
struct Vector {
  typedef float Floats __attribute__((vector_size(LANES * sizeof(float))));
  typedef int32_t Ints __attribute__((vector_size(LANES * sizeof(float))));
};
template <int LANES>
using Floats = typename Vector<LANES>::Floats;

template <int LANES>
ETDEPLOY_INLINE void load(Floats<LANES>& to, const float* from) {
  std::memcpy(&to, from, sizeof(to));
}

// Whether halves or bytes become floats in registers. (On x86, it takes longer to convert halves for
// each few rows than to store their floats.)
template <int LANES, typename Element>
constexpr bool kLoads = false;

#if defined(__x86_64__)
template <int LANES>
constexpr bool kLoads<LANES, int8_t> = LANES >= 8;

template <int LANES>
ETDEPLOY_INLINE void load(Floats<LANES>& to, const int8_t* from) {
  struct Bytes {
    int8_t all[LANES];
  };
  typename Vector<LANES>::Ints whole;
#ifdef __clang__
  typedef int8_t Packed __attribute__((vector_size(LANES)));
  Packed packed;
  std::memcpy(&packed, from, sizeof packed);
  whole = __builtin_convertvector(packed, typename Vector<LANES>::Ints);
#else // which GCC 12 does byte by byte
  asm("vpmovsxbd %1, %0" : "=v"(whole) : "m"(*reinterpret_cast<const Bytes*>(from)));
#endif
  to = __builtin_convertvector(whole, Floats<LANES>);
}
#elif defined(__aarch64__)
template <int LANES>
constexpr bool kLoads<LANES, uint16_t> = LANES == 4; // bytes are multiplied by integers.h

template <int LANES>
ETDEPLOY_INLINE void load(Floats<LANES>& to, const uint16_t* from) {
  to = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
}
#endif

template <int LANES>
ETDEPLOY_INLINE void store(float* to, const Floats<LANES>& from) {
  std::memcpy(to, &from, sizeof(from));
}

// Takes the signs away.
template <int LANES>
ETDEPLOY_INLINE void absolute(Floats<LANES>& numbers) {
  numbers = (Floats<LANES>)((typename Vector<LANES>::Ints)numbers & 0x7fffffff);
}

// The low 16 bits of eight numbers.
ETDEPLOY_INLINE void store_low_halves(uint16_t* to, const Vector<4>::Ints (&from)[2]) {
#if defined(__x86_64__)
  // SSE2 has no instruction that leaves out the high ones, but one that takes any 16 bits with a sign.
  const __m128i low = (__m128i)(from[0] << 16 >> 16), high = (__m128i)(from[1] << 16 >> 16);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_packs_epi32(low, high));
#else
  for (int i = 0; i < 8; ++i) {
    to[i] = static_cast<uint16_t>(from[i / 4][i % 4]);
  }
#endif
}

// The columns of four vectors.
ETDEPLOY_INLINE void transpose(const Floats<4> (&row)[4], Floats<4> (&column)[4]) {
#if defined(__x86_64__)
  const __m128 low[2] = {_mm_unpacklo_ps(row[0], row[1]), _mm_unpacklo_ps(row[2], row[3])};
  const __m128 high[2] = {_mm_unpackhi_ps(row[0], row[1]), _mm_unpackhi_ps(row[2], row[3])};
  column[0] = _mm_movelh_ps(low[0], low[1]);
  column[1] = _mm_movehl_ps(low[1], low[0]);
  column[2] = _mm_movelh_ps(high[0], high[1]);
  column[3] = _mm_movehl_ps(high[1], high[0]);
#elif defined(__aarch64__)
  // The even columns of two rows side by side, and the odd ones.
  const auto pair = [](float32x4_t a, float32x4_t b, float64x2_t (&both)[2]) {
    both[0] = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
    both[1] = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
  };
  float64x2_t first[2], second[2];
  pair(row[0], row[1], first);
  pair(row[2], row[3], second);
  for (int i = 0; i < 2; ++i) {
    column[i] = vreinterpretq_f32_f64(vzip1q_f64(first[i], second[i]));
    column[i + 2] = vreinterpretq_f32_f64(vzip2q_f64(first[i], second[i]));
  }
#else
  for (int i = 0; i < 4; ++i) {
    column[i] = Floats<4>{row[0][i], row[1][i], row[2][i], row[3][i]};
  }
#endif
}

// The sum of all lanes, or the greatest of them; halves are joined until one lane is left.
template <int LANES>
ETDEPLOY_INLINE float sum(const Floats<LANES>& all) {
  if constexpr (LANES == 1) {
    return all[0];
  } else {
    Floats<LANES / 2> half[2];
    std::memcpy(half, &all, sizeof(all));
    const Floats<LANES / 2> joined = half[0] + half[1];
    return sum<LANES / 2>(joined);
  }
}

template <int LANES>
ETDEPLOY_INLINE float greatest(const Floats<LANES>& all) {
  if constexpr (LANES == 1) {
    return all[0];
  } else {
    Floats<LANES / 2> half[2];
    std::memcpy(half, &all, sizeof(all));
    const Floats<LANES / 2> joined = half[0] > half[1] ? half[0] : half[1];
    return greatest<LANES / 2>(joined);
  }
}

// The sums of four vectors, each as `sum` adds it up, bit by bit.
template <int LANES>
ETDEPLOY_INLINE void sums_of_four(const Floats<LANES> (&all)[4], float* to) {
  if constexpr (LANES == 4) {
    Floats<4> column[4];
    transpose(all, column);
    store<4>(to, (column[0] + column[2]) + (column[1] + column[3]));
    return;
  }
#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 12)
  if constexpr (LANES == 16) {
    // Blocks of four lanes: first the halves of two vectors, then those of four, stand side by side.
    Floats<16> two[2], four;
    for (int i = 0; i < 2; ++i) {
      const Floats<16>&a = all[2 * i], &b = all[2 * i + 1];
      two[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
          __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
    four = __builtin_shufflevector(two[0], two[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25,
                                   26, 27) +
        __builtin_shufflevector(two[0], two[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29,
                                30, 31);
    four += __builtin_shufflevector(four, four, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    four += __builtin_shufflevector(four, four, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    const Floats<4> sums = __builtin_shufflevector(four, four, 0, 4, 8, 12);
    store<4>(to, sums);
    return;
  }
#endif
  for (int i = 0; i < 4; ++i) {
    to[i] = sum<LANES>(all[i]);
  }
}

// Replaces x, which is not positive, with e^x: within 2 units in the last place, and 0 below -87.
// e^x = 2^n e^r with |r| <= ln(2) / 2; the polynomial is that of Cephes' expf.
template <int LANES>
ETDEPLOY_INLINE void exponential(Floats<LANES>& x) {
  using F = Floats<LANES>;
  using I = typename Vector<LANES>::Ints;
  const I seen = x > -87.0f;
  x = (F)((I)x & seen); // 0 in place of what becomes 0: no infinity is left
  const F rounding = x * 1.44269504f + 12582912.0f; // 1.5 * 2^23, which has no place for fractions
  const F n = rounding - 12582912.0f;
  const F r = x - n * 0.693359375f - n * -2.12194440e-4f;
  F p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const I power = (__builtin_convertvector(n, I) + 127) << 23;
  x = (F)((I)(p * (F)power) & seen);
}

} // namespace etdeploy
