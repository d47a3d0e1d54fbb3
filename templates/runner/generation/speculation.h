// Proposes tokens that may come next, so that one call verifies several: a call with some tokens
// takes little longer than one with a single token, as each reads all weights.
//
// The tokens of a text do not depend on it: at each position the sampler chooses as ever, and a
// proposal only says which token the next position is computed for before that is known. A token
// that was drawn from the distribution p equals the proposed x with the probability p(x), and is
// else one of p without x: that is rejection sampling (Leviathan et al.: Fast inference from
// transformers via speculative decoding, ICML 2023) for proposals that do not depend on chance, and
// with the same seed, it gives the same text.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>
#include <vector>

// What is chosen after each of the tokens that were fed, all but the first of which were proposed: up
// to the first that is another one than was proposed, or that ends the text.
//
// choose: Gives the token after the one with an index.
template <typename Choose>
std::vector<int64_t> choose_verified(const std::vector<int64_t>& fed,
                                     const std::set<int64_t>& stop_ids, Choose choose) {
  std::vector<int64_t> chosen;
  while (chosen.size() < fed.size() &&
         (chosen.empty() || (chosen.back() == fed[chosen.size()] &&
                             stop_ids.count(chosen.back()) == 0))) {
    chosen.push_back(choose(chosen.size()));
  }
  return chosen;
}

// Looks up where the end of the text was before, and proposes what followed there (Saxena: Prompt
// lookup decoding, 2023).
class Lookup {
 public:
  static constexpr size_t kLongest = 16;

  void restart(const std::vector<int64_t>& before, const std::vector<int64_t>& prompt) {
    text_ = before;
    text_.insert(text_.end(), prompt.begin(), prompt.end());
    matched_ = 0;
    copied_to_ = kNowhere;
  }

  void add(int64_t token) {
    if (matched_ > 0) {
      if (text_[end_] == token) {
        ++end_;
      } else {
        matched_ = 0;
      }
      copied_to_ = end_;
    }
    text_.push_back(token);
  }

  // Finds the longest end of the text that was there before; gives its length, or 0 where even the
  // last token is new. Of several, it is the next one after what was copied last, which goes on where
  // a word of it was replaced, or else the last one.
  size_t find() {
    const size_t length = text_.size();
    matched_ = 0;
    for (size_t end = length - std::min<size_t>(length, 1); end > 0 && matched_ < kLongest; --end) {
      const size_t most = std::min(end, kLongest);
      size_t equal = 0;
      while (equal < most && text_[end - 1 - equal] == text_[length - 1 - equal]) {
        ++equal;
      }
      if (equal > matched_ || (equal > 0 && equal == matched_ && end >= copied_to_)) {
        matched_ = equal;
        end_ = end;
      }
    }
    return matched_;
  }

  // Whether a token is the one that followed what was found.
  bool proposes(int64_t token) const { return matched_ > 0 && text_[end_] == token; }

  // What followed what was found; goes on with itself where that reaches the end of the text.
  void propose(size_t count, std::vector<int64_t>& tokens) const {
    for (size_t i = 0; i < count; ++i) {
      const size_t at = end_ + i;
      tokens.push_back(at < text_.size() ? text_[at] : tokens[at - text_.size()]);
    }
  }

 private:
  static constexpr size_t kNowhere = std::numeric_limits<size_t>::max();

  std::vector<int64_t> text_;
  // Where the last match ended, or the tokens after it that were added since, and its length.
  size_t end_ = 0, matched_ = 0;
  // Where the last tokens that were copied ended.
  size_t copied_to_ = kNowhere;
};

// Decides how many proposed tokens a call verifies, so that the text takes the least time; all times
// are measured, those of a draft among them. They count in calls of a single token: these take longer
// the longer the text is, and on a processor that gets warm, as the others do.
class Pace {
 public:
  // Tokens of a call, the last one of the text among them.
  static constexpr std::array<size_t, 6> kSizes{2, 4, 8, 16, 32, 64};

  // Stands for a match where a draft model proposes, which it can at any place.
  static constexpr size_t kDrafted = Lookup::kLongest + 1;

  // Another text: how long calls take is still known, and how often the draft was right.
  void restart() {
    std::fill(seen_.begin(), seen_.end() - 1, Share());
    balance_ = 0;
    tokens_ = 0;
  }

  // How many tokens to propose, at most `most`, where `matched` tokens were found before; 0 where a
  // single token is faster, or is to be timed first. `behind` nanoseconds come before the proposals.
  size_t proposed(size_t matched, size_t most, double behind = 0) const {
    if (matched != kDrafted) {
      // The first call of several tokens, whose time is not known, has as few as possible.
      const bool timed = std::any_of(costs_.begin(), costs_.end(), [](double cost) { return cost != 0; });
      const size_t count = best(matched, most, kUnlimited);
      return timed ? count : std::min(count, kSizes[0] - 1);
    }
    if (singles_ < kFirstSingles || since_single_ >= kMostWithout) {
      return 0;
    }
    return best(matched, most, balance_ + kDraftTrial + kDraftLoss * tokens_ - behind / single_);
  }

  // Whether a draft may pay, whatever a trial costs.
  bool promises() const {
    return single_ == 0 || best(kDrafted, kSizes.back(), kUnlimited) != 0;
  }

  // A call that took a single token, after `matched` tokens that were found before; `right` where the
  // token is the one that would have been proposed, which costs nothing to know.
  void add_single(double ns, size_t matched = 0, bool right = false) {
    if (matched > 0 && matched != kDrafted) {
      seen_[kind(matched)].add(right);
    }
    count_tokens(1);
    const double before = single_;
    // The first calls of a process may take several times as long. The more calls there were since
    // the last single token, the less its time counts.
    const double part = std::min(kSingle * static_cast<double>(1 + since_single_), kSingleMost);
    single_ = ++singles_ <= kFirstSingles && single_ != 0 ? std::min(single_, ns)
                                                          : smoothed(single_, ns, part, part);
    // The costs of these calls are relative to the previous time of a single token. If the machine has
    // become slower, it was slower for them, too.
    if (since_single_ > 0) {
      for (size_t i = 0; i < costs_.size(); ++i) {
        costs_[i] *= updated_[i] ? before / single_ : 1;
      }
      drafting_ *= before / single_;
      updated_.fill(false);
      since_single_ = 0;
    }
  }

  // A call that verified `proposed` tokens, of which `accepted` were right, and gave one more. In
  // its time are `drafting` for the proposals, and `behind` before that.
  void add_verified(size_t matched, size_t proposed, size_t accepted, double ns,
                    double drafting = 0, double behind = 0) {
    since_single_ += 1;
    for (size_t i = 0; i < std::min(accepted + 1, proposed); ++i) {
      seen_[kind(after(matched, i))].add(i < accepted);
    }
    const size_t size = index_of(proposed + 1);
    updated_[size] = true;
    costs_[size] = smoothed(costs_[size], (ns - drafting - behind) / single_, kShorter, kLonger);
    drafting_ = smoothed(drafting_, drafting / single_ / static_cast<double>(proposed), kShorter,
                         kLonger);
    const auto tokens = static_cast<double>(accepted + 1);
    balance_ = std::min(balance_ + tokens - ns / single_, kSaved);
    count_tokens(tokens);
  }

 private:
  // How many of some proposed tokens were right.
  struct Share {
    double right = 0, all = 0;

    void add(bool is_right) {
      right += is_right ? 1 : 0;
      all += 1;
    }
    void forget(double kept) {
      right *= kept;
      all *= kept;
    }
    // With a share that counts as so many tokens, as long as little is seen.
    double with(double prior, double count) const {
      return std::min((right + prior * count) / (all + count), 0.99);
    }
  };

  // A part of what was seen is forgotten with each token: texts change.
  static constexpr double kKept = 0.99, kDraftKept = 0.998;
  // It has to be this much faster. A draft can be tried at each token, so that estimates of a few
  // percent would be followed for long.
  static constexpr double kMargin = 1.05, kDraftMargin = 1.1;
  static constexpr double kUnlimited = std::numeric_limits<double>::infinity();
  // What trials of a draft may cost, of which nothing is known without them: so many single tokens at
  // first, since it has just read the beginning of the text and would later have to take all that was
  // generated without it, and this part of all. What was saved before counts up to a bound, so that
  // speculation ends soon where the text becomes another.
  static constexpr double kDraftTrial = 4, kDraftLoss = 0.012, kSaved = 5;
  // A draft can propose at each token, and single ones would never be timed: so many are at first,
  // and one after so many calls.
  static constexpr size_t kFirstSingles = 3, kMostWithout = 32;
  // Smoothing factors: of single tokens in a row and at most after other calls, and of calls that
  // verify, where they are faster or slower than estimated.
  static constexpr double kSingle = 0.1, kSingleMost = 0.5, kShorter = 0.25, kLonger = 0.1;
  // Matches of up to so many tokens, and how often the next token is right, as far as nothing is
  // seen in the text itself: less often than in most texts, so that one without repetitions does not
  // lose by it. In a text that copies, it is soon seen.
  static constexpr std::array<std::pair<size_t, double>, 8> kPriors{{{1, 0.15},
                                                                     {2, 0.35},
                                                                     {3, 0.5},
                                                                     {5, 0.65},
                                                                     {9, 0.8},
                                                                     {15, 0.9},
                                                                     {Lookup::kLongest, 0.95},
                                                                     {kDrafted, 0.85}}};
  // How much these count, in tokens.
  static constexpr double kCounts = 5, kDraftCounts = 6;

  // How many tokens to propose for the most tokens by time, where a trial may cost `room` more than
  // a single token.
  size_t best(size_t matched, size_t most, double room) const {
    if (matched == 0 || single_ == 0) {
      return 0;
    }
    double best = matched == kDrafted ? kDraftMargin : kMargin; // tokens by time
    double right = 1, expected = 1; // that the proposals so far are, and the tokens of the call
    size_t count = 0, reached = 0;
    for (size_t i = 0; i < kSizes.size() && reached < most; ++i) {
      for (; reached < std::min(kSizes[i] - 1, most); ++reached) {
        right *= likely_after(after(matched, reached));
        expected += right;
      }
      const double cost =
          cost_of(i) + (matched == kDrafted ? drafting_ * static_cast<double>(reached) : 0);
      if (cost - 1 <= room && expected / cost > best) {
        best = expected / cost;
        count = reached;
      }
    }
    return count;
  }

  // The length of a match after so many more tokens.
  static size_t after(size_t matched, size_t more) {
    return matched == kDrafted ? matched : std::min(matched + more, Lookup::kLongest);
  }

  static size_t kind(size_t matched) {
    size_t i = 0;
    while (i + 1 < kPriors.size() && kPriors[i].first < matched) {
      ++i;
    }
    return i;
  }

  static size_t index_of(size_t size) {
    size_t i = 0;
    while (i + 1 < kSizes.size() && kSizes[i] < size) {
      ++i;
    }
    return i;
  }

  // Other work on the machine makes single times long, which are no measure.
  static double smoothed(double before, double now, double shorter, double longer) {
    const double part = now < before ? shorter : longer;
    return before == 0 ? now : before + part * (std::min(now, 3 * before) - before);
  }

  double likely_after(size_t matched) const {
    const size_t i = kind(matched);
    return seen_[i].with(kPriors[i].second, matched == kDrafted ? kDraftCounts : kCounts);
  }

  // Where none of the size was measured, by the nearest one that was.
  double cost_of(size_t index) const {
    const auto guess = [](size_t i) { return 1.5 + static_cast<double>(kSizes[i]) / 8; };
    for (size_t away = 0; away < kSizes.size(); ++away) {
      for (const size_t i : {index - away, index + away}) {
        if (i < kSizes.size() && costs_[i] != 0) {
          return costs_[i] * guess(index) / guess(i);
        }
      }
    }
    return guess(index);
  }

  void count_tokens(double tokens) {
    tokens_ += tokens;
    for (Share& seen : seen_) {
      seen.forget(std::pow(&seen == &seen_.back() ? kDraftKept : kKept, tokens));
    }
  }

  // Nanoseconds of a call with a single token, and what calls with tokens of each size take, in such
  // calls; 0 for none so far.
  double single_ = 0;
  std::array<double, kSizes.size()> costs_{};
  // Single tokens so far, and calls that verified since the last one.
  size_t singles_ = 0, since_single_ = 0;
  // The sizes of these calls.
  std::array<bool, kSizes.size()> updated_{};
  // What a draft takes for a proposal.
  double drafting_ = 0;
  std::array<Share, kPriors.size()> seen_{};
  // The time that was saved in this text, or lost, and its tokens.
  double balance_ = 0, tokens_ = 0;
};
