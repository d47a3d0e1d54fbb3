// Products of small matrices, row by row in memory, whose blocks stay in registers.
#pragma once

#include <cstdint>

#include "vectors.h"

namespace etdeploy {

// A matrix, or a part of one: `stride` floats from row to row.
struct Rows {
  const float* data;
  int64_t stride;
};

// ROWS x (WIDE * LANES) elements of c += a b.
template <int LANES, int ROWS, int WIDE>
ETDEPLOY_INLINE void add_tile(Rows a, Rows b, int64_t depth, float* c, int64_t stride) {
  Floats<LANES> sums[ROWS][WIDE];
  for (int r = 0; r < ROWS; ++r) {
    for (int w = 0; w < WIDE; ++w) {
      load<LANES>(sums[r][w], c + r * stride + w * LANES);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Floats<LANES> row[WIDE];
    for (int w = 0; w < WIDE; ++w) {
      load<LANES>(row[w], b.data + k * b.stride + w * LANES);
    }
    for (int r = 0; r < ROWS; ++r) {
      for (int w = 0; w < WIDE; ++w) {
        sums[r][w] += a.data[r * a.stride + k] * row[w];
      }
    }
  }
  for (int r = 0; r < ROWS; ++r) {
    for (int w = 0; w < WIDE; ++w) {
      store<LANES>(c + r * stride + w * LANES, sums[r][w]);
    }
  }
}

template <int LANES, int ROWS>
ETDEPLOY_INLINE void add_strip(Rows a, Rows b, int64_t depth, int64_t columns, float* c,
                               int64_t stride) {
  // AVX2 has 16 registers, AVX-512 and NEON 32.
  constexpr int WIDE = LANES == 8 ? 2 : 4;
  int64_t j = 0;
  for (; j + WIDE * LANES <= columns; j += WIDE * LANES) {
    add_tile<LANES, ROWS, WIDE>(a, {b.data + j, b.stride}, depth, c + j, stride);
  }
  for (; j < columns; j += LANES) {
    add_tile<LANES, ROWS, 1>(a, {b.data + j, b.stride}, depth, c + j, stride);
  }
}

// c += a b, where a has `rows` x `depth` elements and `columns` is a multiple of LANES.
template <int LANES>
ETDEPLOY_INLINE void add_product(Rows a, Rows b, int64_t rows, int64_t depth, int64_t columns,
                                 float* c, int64_t stride) {
  for (; rows >= 4; rows -= 4, a.data += 4 * a.stride, c += 4 * stride) {
    add_strip<LANES, 4>(a, b, depth, columns, c, stride);
  }
  if (rows == 3) {
    add_strip<LANES, 3>(a, b, depth, columns, c, stride);
  } else if (rows == 2) {
    add_strip<LANES, 2>(a, b, depth, columns, c, stride);
  } else if (rows == 1) {
    add_strip<LANES, 1>(a, b, depth, columns, c, stride);
  }
}

// The dot products of ROWS rows of a, which are contiguous, with KEYS rows of b.
template <int LANES, int ROWS, int KEYS>
ETDEPLOY_INLINE void dot_tile(const float* a, Rows b, int64_t depth, float* c, int64_t stride) {
  Floats<LANES> sums[ROWS][KEYS] = {};
  for (int64_t i = 0; i < depth; i += LANES) {
    Floats<LANES> key[KEYS];
    for (int k = 0; k < KEYS; ++k) {
      load<LANES>(key[k], b.data + k * b.stride + i);
    }
    for (int r = 0; r < ROWS; ++r) {
      Floats<LANES> row;
      load<LANES>(row, a + r * depth + i);
      for (int k = 0; k < KEYS; ++k) {
        sums[r][k] += row * key[k];
      }
    }
  }
  for (int r = 0; r < ROWS; ++r) {
    for (int k = 0; k < KEYS; ++k) {
      c[r * stride + k] = sum<LANES>(sums[r][k]);
    }
  }
}

template <int LANES, int ROWS>
ETDEPLOY_INLINE void dot_strip(const float* a, Rows b, int64_t keys, int64_t depth, float* c,
                               int64_t stride) {
  int64_t j = 0;
  for (; j + 4 <= keys; j += 4) {
    dot_tile<LANES, ROWS, 4>(a, {b.data + j * b.stride, b.stride}, depth, c + j, stride);
  }
  for (; j < keys; ++j) {
    dot_tile<LANES, ROWS, 1>(a, {b.data + j * b.stride, b.stride}, depth, c + j, stride);
  }
}

// c = a b^T for few rows of a: b is read once, where it is.
template <int LANES>
ETDEPLOY_INLINE void dot_products(const float* a, Rows b, int64_t rows, int64_t keys,
                                  int64_t depth, float* c, int64_t stride) {
  for (; rows >= 3; rows -= 3, a += 3 * depth, c += 3 * stride) {
    dot_strip<LANES, 3>(a, b, keys, depth, c, stride);
  }
  if (rows == 2) {
    dot_strip<LANES, 2>(a, b, keys, depth, c, stride);
  } else if (rows == 1) {
    dot_strip<LANES, 1>(a, b, keys, depth, c, stride);
  }
}

} // namespace etdeploy
