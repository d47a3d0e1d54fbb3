// When the warm-up ends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

// Goes on until the times have stopped falling, which is what caches, memory and the frequency of
// a processor that wakes up do to them. Only that is asked: a device that is busy or gets warm makes
// times rise and scatter, and no warm-up would end that.
//
// Inferences form blocks of 50 ms, in which a governor of frequencies sees the load (the kernel's
// average of it halves in 32 ms), or of one that takes longer. The median of a block stands for it,
// so a single interruption does not. A block that is 2 % faster than the fastest before sets a new
// mark; two in a row that do not end the warm-up. Noise ends it too, however large: of n blocks
// that differ by chance alone, the last is the fastest with a probability of 1 / n.
class Warmup {
 public:
  // The time of the next inference, in nanoseconds.
  void add(int64_t ns) {
    ++inferences_;
    total_ns_ += ns;
    block_ns_ += ns;
    block_.push_back(ns);
    if (block_ns_ >= kBlockNs) {
      end_block();
    }
  }

  bool steady() const { return quiet_ == kQuiet; }

  // Whether it ends: steady, or at a bound.
  bool over() const {
    return steady() || inferences_ >= kMostInferences ||
        (total_ns_ >= kMostNs && inferences_ >= kLeastInferences);
  }

  unsigned inferences() const { return inferences_; }

 private:
  static constexpr int64_t kBlockNs = 50'000'000, kMostNs = 10'000'000'000;
  // As few as can be judged, for a model that takes seconds.
  static constexpr unsigned kLeastInferences = 3, kMostInferences = 1'000'000;
  static constexpr unsigned kQuiet = 2;
  static constexpr double kFaster = 0.98;

  void end_block() {
    const auto middle = block_.begin() + static_cast<std::ptrdiff_t>(block_.size() / 2);
    std::nth_element(block_.begin(), middle, block_.end());
    const bool faster = fastest_ns_ == 0 || *middle < kFaster * static_cast<double>(fastest_ns_);
    quiet_ = faster ? 0 : quiet_ + 1;
    fastest_ns_ = faster ? *middle : fastest_ns_;
    block_.clear();
    block_ns_ = 0;
  }

  std::vector<int64_t> block_;
  int64_t block_ns_ = 0, total_ns_ = 0, fastest_ns_ = 0;
  unsigned inferences_ = 0, quiet_ = 0;
};
