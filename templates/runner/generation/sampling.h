// Chooses the next token: the most probable one, or one drawn by its probability.
//
// Equal logits and seeds give equal tokens on every device. Of floating point, only what IEEE 754
// fixes is used: differences, products, quotients and square roots, each rounded once. exp() differs
// between C libraries, and a sum of products between compilers, which may fuse it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "request.h"

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // Evenly distributed from 0 to below `bound`: the upper half of a product, whose bias is below
  // bound / 2^64.
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }

 private:
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  uint64_t state_;
};

// Powers of two as whole numbers, of which 2^0 is kOne: the sum of all of a vocabulary fits into 64
// bits. An exponent counts to its 24th binary place, which is as exact as a logit.
class Powers {
 public:
  static constexpr int kOneBits = 40;

  Powers() {
    double root = 0.5;
    for (size_t table = 0; table < tables_.size(); ++table) {
      tables_[table].fill(1);
      for (size_t bit = 128; bit != 0; bit /= 2) {
        root = std::sqrt(root); // 2^-(1/2), 2^-(1/4), ...
        for (size_t i = 0; i < 256; ++i) {
          tables_[table][i] *= (i & bit) != 0 ? root : 1;
        }
      }
    }
  }

  // 2^-x; 0 where that is less than the unit.
  uint64_t minus(double x) const {
    if (!(x < kOneBits)) {
      return 0;
    }
    const auto places = static_cast<int64_t>(x * (1 << 24));
    const double part = tables_[0][places >> 16 & 255] * tables_[1][places >> 8 & 255] *
        tables_[2][places & 255];
    // To signed numbers, which processors convert in one instruction.
    const auto power = static_cast<int64_t>(part * (int64_t{1} << kOneBits)) >> (places >> 24);
    return static_cast<uint64_t>(power);
  }

 private:
  std::array<std::array<double, 256>, 3> tables_;
};

// The most probable token, of several equal ones the first; tells logits that are no numbers.
inline size_t most_probable(const float* logits, size_t count) {
  size_t best = 0, undefined = 0;
  float most = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < count; ++i) {
    if (!(logits[i] <= most)) {
      std::isnan(logits[i]) ? void(++undefined) : void((most = logits[i], best = i));
    }
  }
  if (undefined != 0 || !std::isfinite(most)) {
    throw Failure(kInference, undefined != 0
        ? "of " + std::to_string(count) + " logits, " + std::to_string(undefined) + " are NaN"
        : "the largest of " + std::to_string(count) + " logits is " + (most > 0 ? "" : "-") +
            "infinity");
  }
  return best;
}

class Sampler {
 public:
  explicit Sampler(const Sampling& sampling) : sampling_(sampling), random_(sampling.seed) {}

  // The next choice is the first again, in a text that begins with these tokens.
  void restart(const std::vector<int64_t>& text) {
    random_ = Random(sampling_.seed);
    seen_.clear();
    see(text);
  }

  // More tokens of the text.
  void see(const std::vector<int64_t>& tokens) {
    if (sampling_.repetition_penalty != 1) {
      seen_.insert(tokens.begin(), tokens.end());
    }
  }

  int64_t choose(const float* logits, size_t count) {
    if (sampling_.repetition_penalty != 1) {
      logits = penalize(logits, count);
    }
    const size_t best = most_probable(logits, count);
    if (sampling_.temperature == 0) {
      return static_cast<int64_t>(best);
    }
    weigh(logits, count, logits[best]);
    if (sampling_.top_k != 0 && static_cast<size_t>(sampling_.top_k) < candidates_.size()) {
      const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(sampling_.top_k);
      std::partial_sort(candidates_.begin(), end, candidates_.end(), std::greater<>());
      candidates_.erase(end, candidates_.end());
    }
    if (sampling_.top_p < 1) {
      keep_most_probable(sampling_.top_p);
    }
    if (sampling_.min_p > 0) {
      const auto least =
          static_cast<uint64_t>(std::ceil(sampling_.min_p * (uint64_t{1} << Powers::kOneBits)));
      candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(),
                                       [&](uint64_t each) { return weight(each) < least; }),
                        candidates_.end());
    }
    return draw();
  }

 private:
  // A candidate is one number: a weight, and an id that makes a smaller one larger. So there are no
  // equals, and every library sorts alike.
  static constexpr int kIdBits = 22;
  static constexpr uint64_t kIds = (uint64_t{1} << kIdBits) - 1;

  static uint64_t weight(uint64_t candidate) {
    return candidate >> kIdBits;
  }

  static int64_t id(uint64_t candidate) {
    return static_cast<int64_t>(kIds - (candidate & kIds));
  }

  // The logits, with those of every token of the text made smaller (Keskar et al.: CTRL, 2019); as
  // in transformers, whatever is positive is divided and whatever is negative multiplied.
  const float* penalize(const float* logits, size_t count) {
    penalized_.assign(logits, logits + count);
    for (const int64_t id : seen_) {
      float& logit = penalized_[static_cast<size_t>(id)];
      const double penalty = sampling_.repetition_penalty;
      logit = static_cast<float>(logit < 0 ? logit * penalty : logit / penalty);
    }
    return penalized_.data();
  }

  void weigh(const float* logits, size_t count, double most) {
    constexpr double log2_e = 1.4426950408889634;
    candidates_.resize(count);
    size_t found = 0;
    for (size_t i = 0; i < count; ++i) {
      const double x = (most - double{logits[i]}) / sampling_.temperature * log2_e;
      const uint64_t weight = powers_.minus(x);
      candidates_[found] = weight << kIdBits | (kIds - i);
      found += weight != 0;
    }
    candidates_.resize(found);
  }

  uint64_t total() const {
    uint64_t sum = 0;
    for (const uint64_t candidate : candidates_) {
      sum += weight(candidate);
    }
    return sum;
  }

  // As few as have this part of the weight. Only those of as many bits as that takes are sorted: in
  // most texts, few of many.
  void keep_most_probable(double part) {
    const auto enough = static_cast<uint64_t>(std::ceil(part * static_cast<double>(total())));
    std::array<uint64_t, 64> sums{}; // by the number of leading zeros
    for (const uint64_t candidate : candidates_) {
      sums[static_cast<size_t>(__builtin_clzll(candidate))] += weight(candidate);
    }
    size_t zeros = 0;
    for (uint64_t sum = sums[0]; sum < enough && zeros + 1 < sums.size(); sum += sums[zeros]) {
      ++zeros;
    }
    const uint64_t least = uint64_t{1} << (63 - zeros);
    const auto rest = std::partition(candidates_.begin(), candidates_.end(),
                                     [&](uint64_t each) { return each >= least; });
    std::sort(candidates_.begin(), rest, std::greater<>());
    auto end = candidates_.begin();
    for (uint64_t sum = 0; sum < enough && end != rest; ++end) {
      sum += weight(*end);
    }
    candidates_.erase(end, candidates_.end());
  }

  int64_t draw() {
    uint64_t left = random_.below(total());
    for (const uint64_t candidate : candidates_) {
      if (left < weight(candidate)) {
        return id(candidate);
      }
      left -= weight(candidate);
    }
    return id(candidates_.back()); // not reached
  }

  const Sampling sampling_;
  Random random_;
  const Powers powers_;
  std::set<int64_t> seen_;
  std::vector<float> penalized_;
  std::vector<uint64_t> candidates_;
};
