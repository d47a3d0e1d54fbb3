// Rows of keys and values as a cache has them: floats, halves, or bytes with a scale.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace etdeploy {

enum class Format { kFloat, kHalf, kByte };

// A tensor of a cache. A row of bytes has its scale, a float, behind its elements.
struct Cached {
  const void* data;
  Format format;
};

constexpr int64_t kScaleBytes = sizeof(float);
// The largest magnitude of a byte: -128 is not used, so that ranges are symmetric.
constexpr float kMostByte = 127;
constexpr float kMostHalf = 65504;
// From this magnitude on, the bits of a half are infinity or NaN.
constexpr uint32_t kHalfInfinity = 0x7c00;

// How many elements of its type a row of `size` numbers has.
inline int64_t packed_size(Format format, int64_t size) {
  return format == Format::kByte ? size + kScaleBytes : size;
}

inline float scale_of(const int8_t* row, int64_t size) {
  float scale;
  std::memcpy(&scale, row + size, sizeof scale);
  return scale;
}

// `count` rows from an element on, as floats one after the other; here, they are `stride` elements
// apart. LANES divides the size. GCC and Clang make vectors of the loops. Rows of bytes are multiplied
// by their scales if they are `scaled`.
template <int LANES>
inline void unpack_bytes(const int8_t* from, int64_t stride, int64_t count, int64_t size, bool scaled,
             float* to) {
  for (; count > 0; --count, from += stride, to += size) {
    const float scale = scaled ? scale_of(from, size) : 1;
    for (int64_t i = 0; i < size; ++i) {
      to[i] = static_cast<float>(from[i]) * scale;
    }
  }
}

template <int LANES>
inline void unpack_halves(const uint16_t* from, int64_t stride, int64_t count, int64_t size,
                          float* to) {
  for (; count > 0; --count, from += stride, to += size) {
    for (int64_t i = 0; i < size; ++i) {
#ifdef __aarch64__
      __fp16 half;
      std::memcpy(&half, from + i, sizeof half);
      to[i] = half;
#else
      // A half's exponent and fraction, moved to those of a float, are 2^-112 of it.
      const uint32_t half = from[i], magnitude = (half & 0x7fff) << 13;
      float number;
      std::memcpy(&number, &magnitude, sizeof number);
      number = magnitude >= kHalfInfinity << 13 ? NAN : number * 0x1p112f;
      to[i] = half & 0x8000 ? -number : number;
#endif
    }
  }
}

#ifdef __x86_64__
// GCC 12 converts vectors of bytes in halves of their width, and halves one by one. It warns of its
// own AVX-512 functions without a mask: https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105593
constexpr __mmask16 kAllLanes = 0xffff;

template <>
__attribute__((target("avx512f"))) inline void
unpack_bytes<16>(const int8_t* from, int64_t stride, int64_t count, int64_t size, bool scaled,
             float* to) {
  for (; count > 0; --count, from += stride, to += size) {
    const float scale = scaled ? scale_of(from, size) : 1;
    for (int64_t i = 0; i < size; i += 16) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      const __m512i whole = _mm512_maskz_cvtepi8_epi32(kAllLanes, bytes);
      const __m512 numbers = _mm512_maskz_cvtepi32_ps(kAllLanes, whole);
      _mm512_storeu_ps(to + i, _mm512_mul_ps(numbers, _mm512_set1_ps(scale)));
    }
  }
}

template <>
__attribute__((target("avx512f"))) inline void
unpack_halves<16>(const uint16_t* from, int64_t stride, int64_t count, int64_t size, float* to) {
  for (; count > 0; --count, from += stride, to += size) {
    for (int64_t i = 0; i < size; i += 16) {
      const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
      _mm512_storeu_ps(to + i, _mm512_maskz_cvtph_ps(kAllLanes, halves));
    }
  }
}

template <>
__attribute__((target("avx2"))) inline void
unpack_bytes<8>(const int8_t* from, int64_t stride, int64_t count, int64_t size, bool scaled,
             float* to) {
  for (; count > 0; --count, from += stride, to += size) {
    const float scale = scaled ? scale_of(from, size) : 1;
    for (int64_t i = 0; i < size; i += 8) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i));
      const __m256 numbers = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
      _mm256_storeu_ps(to + i, _mm256_mul_ps(numbers, _mm256_set1_ps(scale)));
    }
  }
}

// Every processor with AVX2 has F16C.
template <>
__attribute__((target("avx2,f16c"))) inline void
unpack_halves<8>(const uint16_t* from, int64_t stride, int64_t count, int64_t size, float* to) {
  for (; count > 0; --count, from += stride, to += size) {
    for (int64_t i = 0; i < size; i += 8) {
      const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
    }
  }
}
#endif

// The nearest whole numbers, of two the even one, as bytes; beyond the range of these, the nearest
// byte but -128.
inline void round_to_bytes(const float* from, int64_t size, float inverse, int8_t* to) {
  int64_t i = 0;
#if defined(__x86_64__)
  const __m128 scale = _mm_set1_ps(inverse), most = _mm_set1_ps(kMostByte);
  const __m128 least = _mm_set1_ps(-kMostByte);
  const auto four = [&](const float* numbers) {
    const __m128 scaled = _mm_mul_ps(_mm_loadu_ps(numbers), scale);
    return _mm_cvtps_epi32(_mm_min_ps(_mm_max_ps(scaled, least), most));
  };
  for (; i + 16 <= size; i += 16) {
    const __m128i low = _mm_packs_epi32(four(from + i), four(from + i + 4));
    const __m128i high = _mm_packs_epi32(four(from + i + 8), four(from + i + 12));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm_packs_epi16(low, high));
  }
#elif defined(__aarch64__)
  const float32x4_t most = vdupq_n_f32(kMostByte), least = vdupq_n_f32(-kMostByte);
  const auto four = [&](const float* numbers) {
    const float32x4_t scaled = vmulq_n_f32(vld1q_f32(numbers), inverse);
    return vcvtnq_s32_f32(vminq_f32(vmaxq_f32(scaled, least), most));
  };
  for (; i + 16 <= size; i += 16) {
    const int16x8_t low = vmovn_high_s32(vmovn_s32(four(from + i)), four(from + i + 4));
    const int16x8_t high = vmovn_high_s32(vmovn_s32(four(from + i + 8)), four(from + i + 12));
    vst1q_s8(to + i, vmovn_high_s16(vmovn_s16(low), high));
  }
#endif
  for (; i < size; ++i) {
    const float rounded = std::nearbyintf(from[i] * inverse);
    const float limited = std::min(std::max(rounded, -kMostByte), kMostByte);
    to[i] = static_cast<int8_t>(static_cast<int32_t>(limited));
  }
}

// A row of bytes and its scale, which is NaN if an element is infinite or NaN.
inline void pack_bytes(const float* from, int64_t size, int8_t* to) {
  Floats<4> largest = {}, zeros = {};
  const int64_t vectors = size / 4 * 4;
  for (int64_t i = 0; i < vectors; i += 4) {
    Floats<4> numbers;
    load<4>(numbers, from + i);
    zeros += numbers * 0.0f;
    absolute<4>(numbers);
    largest = numbers > largest ? numbers : largest;
  }
  float most = greatest<4>(largest), not_finite = sum<4>(zeros);
  for (int64_t i = vectors; i < size; ++i) {
    most = std::max(most, std::fabs(from[i]));
    not_finite += from[i] * 0.0f;
  }
  const float inverse = most > 0 ? kMostByte / most : 0, scale = most / kMostByte + not_finite;
  round_to_bytes(from, size, inverse, to);
  std::memcpy(to + size, &scale, sizeof scale);
}

// The nearest halves, in 32 bits each; of two, that with an even fraction.
template <int LANES>
ETDEPLOY_INLINE void round_to_halves(const float* from, typename Vector<LANES>::Ints& halves) {
  using I = typename Vector<LANES>::Ints;
  Floats<LANES> numbers;
  load<LANES>(numbers, from);
  const I signs = (I)numbers >> 16 & 0x8000;
  absolute<LANES>(numbers);
  numbers = numbers > kMostHalf ? kMostHalf - (Floats<LANES>){} : numbers;
  // A half's exponent and fraction are those of a float of 2^-112 of it, in other places.
  const I scaled = (I)(numbers * 0x1p-112f);
  halves = ((scaled + 0xfff + (scaled >> 13 & 1)) >> 13 & 0x7fff) | signs;
}

// A row of halves, each the nearest one.
inline void pack_halves(const float* from, int64_t size, uint16_t* to) {
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    Vector<4>::Ints parts[2];
    round_to_halves<4>(from + i, parts[0]);
    round_to_halves<4>(from + i + 4, parts[1]);
    store_low_halves(to + i, parts);
  }
  for (; i < size; ++i) {
    Vector<1>::Ints half;
    round_to_halves<1>(from + i, half);
    to[i] = static_cast<uint16_t>(half[0]);
  }
}

} // namespace etdeploy
