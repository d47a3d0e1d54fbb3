// Products of small matrices, row by row in memory, whose blocks stay in registers.
#pragma once

#include <cstdint>

#include "vectors.h"

namespace etdeploy {

// A matrix, or a part of one: `stride` elements from row to row.
template <typename Element>
struct RowsOf {
  const Element* data;
  int64_t stride;

  RowsOf from(int64_t row, int64_t column) const {
    return {data + row * stride + column, stride};
  }
};
using Rows = RowsOf<float>;

// ROWS x (WIDE * LANES) elements of c += a b.
template <int LANES, int ROWS, int WIDE, typename Element>
ETDEPLOY_INLINE void add_tile(Rows a, RowsOf<Element> b, int64_t depth, float* c, int64_t stride) {
  Floats<LANES> sums[ROWS][WIDE];
  ETDEPLOY_UNROLL
  for (int r = 0; r < ROWS; ++r) {
    ETDEPLOY_UNROLL
    for (int w = 0; w < WIDE; ++w) {
      load<LANES>(sums[r][w], c + r * stride + w * LANES);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Floats<LANES> row[WIDE];
    ETDEPLOY_UNROLL
    for (int w = 0; w < WIDE; ++w) {
      load<LANES>(row[w], b.data + k * b.stride + w * LANES);
    }
    ETDEPLOY_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      ETDEPLOY_UNROLL
      for (int w = 0; w < WIDE; ++w) {
        sums[r][w] += a.data[r * a.stride + k] * row[w];
      }
    }
  }
  ETDEPLOY_UNROLL
  for (int r = 0; r < ROWS; ++r) {
    ETDEPLOY_UNROLL
    for (int w = 0; w < WIDE; ++w) {
      store<LANES>(c + r * stride + w * LANES, sums[r][w]);
    }
  }
}

// Vectors of a tile's row: AVX2 has 16 registers, AVX-512 and NEON 32.
template <int LANES>
constexpr int kWide = LANES == 8 ? 2 : 4;

template <int LANES, int ROWS, int WIDE = kWide<LANES>, typename Element>
ETDEPLOY_INLINE void add_strip(Rows a, RowsOf<Element> b, int64_t depth, int64_t columns, float* c,
                               int64_t stride) {
  for (; columns >= WIDE * LANES; columns -= WIDE * LANES, b = b.from(0, WIDE * LANES),
                                  c += WIDE * LANES) {
    add_tile<LANES, ROWS, WIDE>(a, b, depth, c, stride);
  }
  if constexpr (WIDE > 1) { // one vector alone would wait for each of its sums
    add_strip<LANES, ROWS, WIDE / 2>(a, b, depth, columns, c, stride);
  }
}

// c += a b, where a has `rows` x `depth` elements and `columns` is a multiple of LANES.
template <int LANES, typename Element>
ETDEPLOY_INLINE void add_product(Rows a, RowsOf<Element> b, int64_t rows, int64_t depth,
                                 int64_t columns, float* c, int64_t stride) {
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

// Four rows of four columns of `from` become four columns of four rows.
ETDEPLOY_INLINE void transpose_tile(Rows from, float* to, int64_t stride) {
  Floats<4> row[4], column[4];
  ETDEPLOY_UNROLL
  for (int r = 0; r < 4; ++r) {
    load<4>(row[r], from.data + r * from.stride);
  }
  transpose(row, column);
  ETDEPLOY_UNROLL
  for (int r = 0; r < 4; ++r) {
    store<4>(to + r * stride, column[r]);
  }
}

// The columns of `rows` rows become rows.
ETDEPLOY_INLINE void transpose(Rows from, int64_t rows, int64_t columns, float* to, int64_t stride) {
  const int64_t tiled_rows = rows / 4 * 4, tiled_columns = columns / 4 * 4;
  for (int64_t i = 0; i < tiled_columns; i += 4) {
    for (int64_t j = 0; j < tiled_rows; j += 4) {
      transpose_tile(from.from(j, i), to + i * stride + j, stride);
    }
  }
  for (int64_t i = 0; i < columns; ++i) {
    for (int64_t j = i < tiled_columns ? tiled_rows : 0; j < rows; ++j) {
      to[i * stride + j] = from.data[j * from.stride + i];
    }
  }
}

// The dot products of ROWS rows of a, which are contiguous, with KEYS rows of b.
template <int LANES, int ROWS, int KEYS, typename Element>
ETDEPLOY_INLINE void dot_tile(const float* a, RowsOf<Element> b, int64_t depth, float* c, int64_t stride) {
  Floats<LANES> sums[ROWS][KEYS] = {};
  for (int64_t i = 0; i < depth; i += LANES) {
    Floats<LANES> key[KEYS];
    ETDEPLOY_UNROLL
    for (int k = 0; k < KEYS; ++k) {
      load<LANES>(key[k], b.data + k * b.stride + i);
    }
    ETDEPLOY_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      Floats<LANES> row;
      load<LANES>(row, a + r * depth + i);
      ETDEPLOY_UNROLL
      for (int k = 0; k < KEYS; ++k) {
        sums[r][k] += row * key[k];
      }
    }
  }
  ETDEPLOY_UNROLL
  for (int r = 0; r < ROWS; ++r) {
    if constexpr (KEYS == 4) {
      sums_of_four<LANES>(sums[r], c + r * stride);
    } else {
      ETDEPLOY_UNROLL
      for (int k = 0; k < KEYS; ++k) {
        c[r * stride + k] = sum<LANES>(sums[r][k]);
      }
    }
  }
}

template <int LANES, int ROWS, typename Element>
ETDEPLOY_INLINE void dot_strip(const float* a, RowsOf<Element> b, int64_t keys, int64_t depth,
                               float* c, int64_t stride) {
  int64_t j = 0;
  for (; j + 4 <= keys; j += 4) {
    dot_tile<LANES, ROWS, 4>(a, b.from(j, 0), depth, c + j, stride);
  }
  for (; j < keys; ++j) {
    dot_tile<LANES, ROWS, 1>(a, b.from(j, 0), depth, c + j, stride);
  }
}

// c = a b^T for few rows of a: b is read once, where it is.
template <int LANES, typename Element>
ETDEPLOY_INLINE void dot_products(const float* a, RowsOf<Element> b, int64_t rows, int64_t keys,
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
