// Attention over the keys and values of a cache, read where they are.
//
// The softmax is taken block by block: what was summed is scaled whenever a greater score appears
// (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018), so nothing grows with
// the number of positions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "products.h"

namespace etdeploy {

// Positions whose scores are computed at once.
constexpr int64_t kBlock = 64;
// With fewer rows, to transpose a block of keys costs more than it saves.
constexpr int64_t kTransposedRows = 8;

// Rows of a size that a head and a token, or a place, have: how far one is from the next.
struct Strides {
  int64_t head, row;
};

// A call of the kernel. Each key head serves `heads / groups` heads.
struct Attention {
  const float* query; // heads, tokens, key_size
  const float* keys; // groups, places, key_size; a position's place is its remainder
  const float* values; // groups, places, value_size
  const int64_t* positions; // (tokens,), one after the other
  int64_t heads, groups, tokens, places, key_size, value_size;
  int64_t window; // how many positions a token sees, itself the last; 0 for all
  float scale; // of the scores
  float softcap; // their bound; 0 for none
  Strides query_strides, key_strides, value_strides;
  // What is added to the scores of all places, (tokens, places), in place of what positions say.
  const float* mask = nullptr;
  bool causal = true; // or each token sees what the last one sees

  int64_t heads_per_group() const { return heads / groups; }
  int64_t first_seen(int64_t token) const {
    return window > 0 ? std::max<int64_t>(0, positions[token] - window + 1) : 0;
  }
  // Where what a token sees ends.
  int64_t seen_end(int64_t token) const {
    return mask ? places : positions[causal ? token : tokens - 1] + 1;
  }
};

// A part of the work: the rows of tokens [token, token + tokens) of one key head, which are sorted
// by token, and the positions [from, to) of what they see.
struct Part {
  int64_t group, token, tokens, from, to;
};

// What a part gives for each row: its greatest score, and the sums of the weights, and of the
// values times their weights, relative to that.
struct Sums {
  float* greatest; // (rows,)
  float* weights; // (rows,)
  float* values; // (rows, value_size)
};

// The floats that a part needs beside its sums.
inline int64_t scratch_size(const Attention& a, int64_t rows) {
  return rows * (a.key_size + kBlock) + kBlock * a.key_size;
}

// Makes weights of one row's scores of a block, of which it sees [from, to), and adds them up.
template <int LANES>
ETDEPLOY_INLINE void weigh(const Attention& a, float* scores, int64_t from, int64_t to,
                           float& greatest_score, float& weights, float* values) {
  if (a.softcap > 0) {
    for (int64_t j = from; j < to; ++j) {
      scores[j] = std::tanh(scores[j] / a.softcap) * a.softcap;
    }
  }
  std::fill(scores, scores + from, -INFINITY);
  std::fill(scores + to, scores + kBlock, -INFINITY);
  Floats<LANES> most, score, total = {};
  load<LANES>(most, scores);
  for (int64_t j = LANES; j < kBlock; j += LANES) {
    load<LANES>(score, scores + j);
    most = score > most ? score : most;
  }
  const float high = std::max(greatest_score, greatest<LANES>(most));
  for (int64_t j = 0; j < kBlock; j += LANES) {
    load<LANES>(score, scores + j);
    score -= high;
    exponential<LANES>(score);
    total += score;
    store<LANES>(scores + j, score);
  }
  if (high > greatest_score) {
    const float kept = std::exp(greatest_score - high);
    weights *= kept;
    for (int64_t i = 0; i < a.value_size; i += LANES) {
      load<LANES>(score, values + i);
      score *= kept;
      store<LANES>(values + i, score);
    }
    greatest_score = high;
  }
  weights += sum<LANES>(total);
}

// The rows of a part: their queries, scaled, one after the other.
ETDEPLOY_INLINE void gather(const Attention& a, const Part& part, float* queries) {
  const int64_t per_group = a.heads_per_group();
  for (int64_t row = 0; row < per_group * part.tokens; ++row) {
    const int64_t head = part.group * per_group + row % per_group;
    const int64_t token = part.token + row / per_group;
    const float* query = a.query + head * a.query_strides.head + token * a.query_strides.row;
    for (int64_t i = 0; i < a.key_size; ++i) {
      queries[row * a.key_size + i] = query[i] * a.scale;
    }
  }
}

// The scores of all rows with `count` keys that follow each other in memory.
template <int LANES>
ETDEPLOY_INLINE void score(const Attention& a, const float* queries, int64_t rows,
                           Rows keys, int64_t count, float* scores, float* transposed) {
  if (rows < kTransposedRows) {
    dot_products<LANES>(queries, keys, rows, count, a.key_size, scores, kBlock);
    return;
  }
  for (int64_t i = 0; i < a.key_size; ++i) {
    float* const row = transposed + i * kBlock;
    for (int64_t j = 0; j < count; ++j) {
      row[j] = keys.data[j * keys.stride + i];
    }
    // Nobody sees these; they are only computed with the others.
    std::fill(row + count, row + kBlock, 0.0f);
  }
  std::fill(scores, scores + rows * kBlock, 0.0f);
  add_product<LANES>({queries, a.key_size}, {transposed, kBlock}, rows, a.key_size, kBlock, scores,
                     kBlock);
}

// Computes the sums of a part. LANES divides both sizes.
template <int LANES>
ETDEPLOY_INLINE void attend(const Attention& a, const Part& part, float* scratch, Sums sums) {
  const int64_t per_group = a.heads_per_group(), rows = per_group * part.tokens;
  float* const queries = scratch;
  float* const scores = queries + rows * a.key_size;
  float* const transposed = scores + rows * kBlock;
  gather(a, part, queries);
  std::fill(sums.greatest, sums.greatest + rows, -1e30f);
  std::fill(sums.weights, sums.weights + rows, 0.0f);
  std::fill(sums.values, sums.values + rows * a.value_size, 0.0f);
  for (int64_t position = part.from; position < part.to;) {
    const int64_t place = position % a.places;
    const int64_t count = std::min({kBlock, part.to - position, a.places - place});
    const Strides &by_key = a.key_strides, &by_value = a.value_strides;
    const Rows keys = {a.keys + part.group * by_key.head + place * by_key.row, by_key.row};
    const Rows values = {a.values + part.group * by_value.head + place * by_value.row, by_value.row};
    score<LANES>(a, queries, rows, keys, count, scores, transposed);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t token = part.token + row / per_group;
      if (a.mask) {
        for (int64_t j = 0; j < count; ++j) {
          scores[row * kBlock + j] += a.mask[token * a.places + place + j];
        }
      }
      const int64_t end = std::clamp<int64_t>(a.seen_end(token) - position, 0, count);
      const int64_t begin = std::clamp<int64_t>(a.first_seen(token) - position, 0, end);
      weigh<LANES>(a, scores + row * kBlock, begin, end, sums.greatest[row], sums.weights[row],
                   sums.values + row * a.value_size);
    }
    add_product<LANES>({scores, kBlock}, values, rows, count, a.value_size, sums.values,
                       a.value_size);
    position += count;
  }
}

// Computes a call on the threads of the pool, into rows of (tokens, heads, value_size); whether there
// was enough memory.
bool compute(const Attention& a, float* out);

} // namespace etdeploy
