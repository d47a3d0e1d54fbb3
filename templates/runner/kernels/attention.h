// Attention over the keys and values of a cache, read where they are.
//
// The softmax is taken block by block: what was summed is scaled whenever a greater score appears
// (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018), so nothing grows with
// the number of positions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "integers.h"
#include "products.h"
#include "rows.h"

namespace etdeploy {

// Positions whose scores are computed at once.
constexpr int64_t kBlock = 64;
// With fewer rows, to transpose a block of keys costs more than it saves.
constexpr int64_t kTransposedRows = 8;
// A call with up to so many tokens gives for each of them what one with the token alone would give,
// bit by bit: speculation takes several at once, and must not change the text.
constexpr int64_t kFewTokens = 16;

// Rows of a size that a head and a token, or a place, have: how far one is from the next, in elements.
struct Strides {
  int64_t head, row;
};

// A call of the kernel. Each key head serves `heads / groups` heads.
struct Attention {
  const float* query; // heads, tokens, key_size
  Cached keys; // groups, places, key_size; see `place`
  Cached values; // groups, places, value_size, in the format of keys
  const int64_t* positions; // (tokens,), one after the other
  int64_t heads, groups, tokens, places, key_size, value_size;
  int64_t window; // how many positions a token sees, itself the last; 0 for all
  float scale; // of the scores
  float softcap; // their bound; 0 for none
  Strides query_strides, key_strides, value_strides;
  // What is added to the scores of all places, (tokens, places), in place of what positions say.
  const float* mask = nullptr;
  bool causal = true; // or each token sees what the last one sees
  // The first positions, which every later token sees beside its window; they keep their places.
  int64_t sinks = 0;

  int64_t heads_per_group() const { return heads / groups; }
  bool has_few_tokens() const { return tokens <= kFewTokens; }
  // Where a token's window begins.
  int64_t first_seen(int64_t token) const {
    return window > 0 ? std::max(sinks, positions[token] - window + 1) : sinks;
  }
  // Where a position is: behind the sinks, later ones replace earlier ones.
  int64_t place(int64_t position) const {
    return position < sinks ? position : sinks + (position - sinks) % (places - sinks);
  }
  // Where positions end that are in a row of places with this one.
  int64_t row_end(int64_t position) const {
    return position < sinks ? sinks : position + places - place(position);
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

// What a part of `rows` rows computes with, beside its sums.
struct Scratch {
  float* queries; // scaled, one after the other
  float* scores; // of a block, and then the weights
  float* transposed; // keys of a block
  float* unpacked; // a block's keys, and then its values
  Words query_words, weight_words;

  // The floats that it takes.
  static int64_t size(const Attention& a, int64_t rows) {
    const int64_t scales = 2 * rows, words = rows * (a.key_size + kBlock + 1) / 2;
    return rows * (a.key_size + kBlock) + kBlock * (a.key_size + std::max(a.key_size, a.value_size)) +
        scales + words;
  }

  Scratch(const Attention& a, int64_t rows, float* memory)
      : queries(memory),
        scores(queries + rows * a.key_size),
        transposed(scores + rows * kBlock),
        unpacked(transposed + kBlock * a.key_size) {
    float* const scales = unpacked + kBlock * std::max(a.key_size, a.value_size);
    int8_t* const words = reinterpret_cast<int8_t*>(scales + 2 * rows);
    query_words = {words, 2 * a.key_size, scales};
    weight_words = {words + rows * query_words.stride, 2 * kBlock, scales + rows};
  }
};

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
  if ((a.has_few_tokens() ? a.heads_per_group() : rows) < kTransposedRows) {
    dot_products<LANES>(queries, keys, rows, count, a.key_size, scores, kBlock);
    return;
  }
  transpose(keys, count, a.key_size, transposed, kBlock);
  const int64_t columns = (count + LANES - 1) / LANES * LANES;
  for (int64_t i = 0; i < a.key_size; ++i) {
    // Nobody sees these; they are only computed with the others.
    std::fill(transposed + i * kBlock + count, transposed + i * kBlock + columns, 0.0f);
  }
  for (int64_t row = 0; row < rows; ++row) {
    std::fill(scores + row * kBlock, scores + row * kBlock + columns, 0.0f);
  }
  add_product<LANES>(Rows{queries, a.key_size}, Rows{transposed, kBlock}, rows, a.key_size, columns,
                     scores, kBlock);
}

// Rows of a block as floats: where they are, or else in `unpacked`; bytes may be `scaled`.
template <int LANES, typename Element>
ETDEPLOY_INLINE Rows floats_of(RowsOf<Element> rows, int64_t count, int64_t size, bool scaled,
                               float* unpacked) {
  if constexpr (std::is_same_v<Element, float>) {
    return rows;
  } else if constexpr (std::is_same_v<Element, uint16_t>) {
    unpack_halves<LANES>(rows.data, rows.stride, count, size, unpacked);
  } else {
    unpack_bytes<LANES>(rows.data, rows.stride, count, size, scaled, unpacked);
  }
  return {unpacked, size};
}

// The scales of a block's rows of bytes.
ETDEPLOY_INLINE void scales_of(RowsOf<int8_t> rows, int64_t count, int64_t size, float* scales) {
  for (int64_t j = 0; j < count; ++j) {
    scales[j] = scale_of(rows.data + j * rows.stride, size);
  }
  std::fill(scales + count, scales + kBlock, 0.0f);
}

// Multiplies each row of a block of scores by the scales of its columns.
template <int LANES>
ETDEPLOY_INLINE void multiply(float* scores, int64_t rows, const float* scales) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t j = 0; j < kBlock; j += LANES) {
      Floats<LANES> score, scale;
      load<LANES>(score, scores + row * kBlock + j);
      load<LANES>(scale, scales + j);
      score *= scale;
      store<LANES>(scores + row * kBlock + j, score);
    }
  }
}

// Whether elements become floats in registers, for so few rows that most of them do so once.
template <int LANES, typename Element>
ETDEPLOY_INLINE bool loads(int64_t rows) {
  return kLoads<LANES, Element> && rows < kTransposedRows;
}

// Whether the scales of bytes are for their products, as they are when bytes become floats in
// registers, and for each of few tokens then.
template <int LANES, typename Element>
ETDEPLOY_INLINE bool scales_products(const Attention& a, int64_t rows) {
  return std::is_same_v<Element, int8_t> && kLoads<LANES, Element> &&
      (rows < kTransposedRows || a.has_few_tokens());
}

// The scores of all rows of a part with the keys of a block.
template <int LANES, typename Element, typename Set>
ETDEPLOY_INLINE void score_block(const Attention& a, const Scratch& scratch, int64_t rows,
                                 RowsOf<Element> keys, int64_t count) {
  const int64_t size = a.key_size;
  const bool scale_scores = scales_products<LANES, Element>(a, rows);
  float* const scores = scratch.scores;
  [[maybe_unused]] float scales[kBlock];
  if constexpr (kHasIntegers<Set, Element>) {
    if (fits_integers(size)) {
      scales_of(keys, count, size, scales);
      score_integers<Set>(scratch.query_words, rows, keys, count, size, scales, scores, kBlock);
      return;
    }
  }
  if (loads<LANES, Element>(rows)) {
    if constexpr (kLoads<LANES, Element>) {
      dot_products<LANES>(scratch.queries, keys, rows, count, size, scores, kBlock);
    }
  } else {
    const Rows floats = floats_of<LANES>(keys, count, size, !scale_scores, scratch.unpacked);
    score<LANES>(a, scratch.queries, rows, floats, count, scores, scratch.transposed);
  }
  if constexpr (std::is_same_v<Element, int8_t>) {
    if (scale_scores) {
      scales_of(keys, count, size, scales);
      multiply<LANES>(scores, rows, scales);
    }
  }
}

// Adds the values of a block to `sums`, times their weights.
template <int LANES, typename Element, typename Set>
ETDEPLOY_INLINE void add_block(const Attention& a, const Scratch& scratch, int64_t rows,
                               RowsOf<Element> values, int64_t count, float* sums) {
  const int64_t size = a.value_size;
  const bool scale_weights = scales_products<LANES, Element>(a, rows);
  float* const weights = scratch.scores;
  [[maybe_unused]] float scales[kBlock];
  if constexpr (kHasIntegers<Set, Element>) {
    if (fits_integers(size)) {
      scales_of(values, count, size, scales);
      multiply<LANES>(weights, rows, scales);
      const bool finite = all_finite(scales, kBlock);
      for (int64_t row = 0; row < rows; ++row) {
        make_words<Set>(weights + row * kBlock, kBlock, finite, scratch.weight_words.from(row));
      }
      add_integers<Set>(scratch.weight_words, rows, values, count, size, sums, size);
      return;
    }
  }
  if constexpr (std::is_same_v<Element, int8_t>) {
    if (scale_weights) {
      scales_of(values, count, size, scales);
      multiply<LANES>(weights, rows, scales);
    }
  }
  if (loads<LANES, Element>(rows)) {
    if constexpr (kLoads<LANES, Element>) {
      add_product<LANES>(Rows{weights, kBlock}, values, rows, count, size, sums, size);
    }
  } else {
    const Rows floats = floats_of<LANES>(values, count, size, !scale_weights, scratch.unpacked);
    add_product<LANES>(Rows{weights, kBlock}, floats, rows, count, size, sums, size);
  }
}

// Computes the sums of a part. LANES divides both sizes. With a set of integer instructions, rows of
// bytes are multiplied as they are.
template <int LANES, typename Element, typename Set = NoIntegers>
ETDEPLOY_INLINE void attend(const Attention& a, const Part& part, float* memory, Sums sums) {
  const int64_t per_group = a.heads_per_group(), rows = per_group * part.tokens;
  const Scratch scratch(a, rows, memory);
  gather(a, part, scratch.queries);
  if constexpr (kHasIntegers<Set, Element>) {
    for (int64_t row = 0; fits_integers(a.key_size) && row < rows; ++row) {
      const float* const query = scratch.queries + row * a.key_size;
      const bool finite = all_finite(query, a.key_size);
      make_words<Set>(query, a.key_size, finite, scratch.query_words.from(row));
    }
  }
  std::fill(sums.greatest, sums.greatest + rows, -1e30f);
  std::fill(sums.weights, sums.weights + rows, 0.0f);
  std::fill(sums.values, sums.values + rows * a.value_size, 0.0f);
  const RowsOf<Element> all_keys = {static_cast<const Element*>(a.keys.data), a.key_strides.row};
  const RowsOf<Element> all_values = {static_cast<const Element*>(a.values.data),
                                      a.value_strides.row};
  for (int64_t position = part.from; position < part.to;) {
    const int64_t place = a.place(position);
    const int64_t count = std::min({kBlock, part.to - position, a.row_end(position) - position});
    score_block<LANES, Element, Set>(
        a, scratch, rows, all_keys.from(place, part.group * a.key_strides.head), count);
    for (int64_t row = 0; row < rows; ++row) {
      float* const scores = scratch.scores + row * kBlock;
      const int64_t token = part.token + row / per_group;
      if (a.mask) {
        for (int64_t j = 0; j < count; ++j) {
          scores[j] += a.mask[token * a.places + place + j];
        }
      }
      const int64_t end = std::clamp<int64_t>(a.seen_end(token) - position, 0, count);
      const int64_t first = position < a.sinks ? 0 : a.first_seen(token);
      const int64_t begin = std::clamp<int64_t>(first - position, 0, end);
      weigh<LANES>(a, scores, begin, end, sums.greatest[row], sums.weights[row],
                   sums.values + row * a.value_size);
    }
    add_block<LANES, Element, Set>(a, scratch, rows,
                                   all_values.from(place, part.group * a.value_strides.head), count,
                                   sums.values);
    position += count;
  }
}

// Computes a call on the threads of the pool, into rows of (tokens, heads, value_size); whether there
// was enough memory.
bool compute(const Attention& a, float* out);

} // namespace etdeploy
