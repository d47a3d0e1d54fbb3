// Rows of keys and values as a cache has them: floats, halves, or bytes with a scale.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

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

// The nearest whole number, of two the even one. Without SSE 4.1, nearbyintf is a function call;
// but a float of 2^23 has no fraction, and without fused products, the sum is rounded alone.
inline float rounded(float number) {
#if defined(__x86_64__) && !defined(__SSE4_1__)
  constexpr float kNoFraction = 0x1.8p23f;
  return (number + kNoFraction) - kNoFraction;
#else
  return std::nearbyintf(number);
#endif
}

// Numbers that are compared side by side: compilers keep the order of a single maximum.
constexpr int64_t kSideBySide = 8;

// A row of bytes and its scale, which is NaN if an element is infinite or NaN.
inline void pack_bytes(const float* from, int64_t size, int8_t* to) {
  float largest[kSideBySide] = {}, zeros[kSideBySide] = {};
  const auto add = [&](int64_t place, float number) {
    const float magnitude = std::fabs(number);
    largest[place] = magnitude > largest[place] ? magnitude : largest[place];
    zeros[place] += number * 0.0f;
  };
  int64_t i = 0;
  for (; i + kSideBySide <= size; i += kSideBySide) {
    for (int64_t place = 0; place < kSideBySide; ++place) {
      add(place, from[i + place]);
    }
  }
  for (; i < size; ++i) {
    add(0, from[i]);
  }
  float most = 0, not_finite = 0;
  for (int64_t place = 0; place < kSideBySide; ++place) {
    most = std::max(most, largest[place]);
    not_finite += zeros[place];
  }
  const float inverse = most > 0 ? kMostByte / most : 0, scale = most / kMostByte + not_finite;
  for (i = 0; i < size; ++i) {
    const float limited = std::min(std::max(rounded(from[i] * inverse), -kMostByte), kMostByte);
    to[i] = static_cast<int8_t>(static_cast<int32_t>(limited));
  }
  std::memcpy(to + size, &scale, sizeof scale);
}

// A row of halves, each the nearest one; of two, that with an even fraction.
inline void pack_halves(const float* from, int64_t size, uint16_t* to) {
  for (int64_t i = 0; i < size; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    const float number = std::min(std::fabs(from[i]), kMostHalf) * 0x1p-112f;
    uint32_t magnitude;
    std::memcpy(&magnitude, &number, sizeof magnitude);
    magnitude += 0xfff + ((magnitude >> 13) & 1);
    to[i] = static_cast<uint16_t>((magnitude >> 13 & 0x7fff) | (bits >> 16 & 0x8000));
  }
}

} // namespace etdeploy
