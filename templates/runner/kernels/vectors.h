// Vectors of floats as GCC and Clang know them: the same code for SSE, AVX, AVX-512 and NEON.
//
// All of it is inlined, since its instructions are those of the function that it ends up in. No
// vector is passed by value, which old compilers would do in memory.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __aarch64__
#include <arm_neon.h>
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
