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
  static constexpr size_t kShortest = 2, kLongest = 16;

  void restart(const std::vector<int64_t>& before, const std::vector<int64_t>& prompt) {
    text_ = before;
    text_.insert(text_.end(), prompt.begin(), prompt.end());
    end_ = matched_ = 0;
  }

  void add(int64_t token) { text_.push_back(token); }

  // Finds the longest end of the text that was there before, of several the last one; gives its
  // length, or 0 where even the shortest is new.
  size_t find() {
    const size_t length = text_.size();
    matched_ = 0;
    for (size_t end = length - std::min<size_t>(length, 1);
         end >= kShortest && matched_ < kLongest; --end) {
      const size_t most = std::min(end, kLongest);
      size_t equal = 0;
      while (equal < most && text_[end - 1 - equal] == text_[length - 1 - equal]) {
        ++equal;
      }
      if (equal >= kShortest && equal > matched_) {
        matched_ = equal;
        end_ = end;
      }
    }
    return matched_;
  }

  // What followed what was found; goes on with itself where that reaches the end of the text.
  void propose(size_t count, std::vector<int64_t>& tokens) const {
    for (size_t i = 0; i < count; ++i) {
      const size_t at = end_ + i;
      tokens.push_back(at < text_.size() ? text_[at] : tokens[at - text_.size()]);
    }
  }

 private:
  std::vector<int64_t> text_;
  // Where the last match ended, and its length.
  size_t end_ = 0, matched_ = 0;
};

// Decides how many proposed tokens a call verifies, so that the text takes the least time; all times
// are measured, those of a draft among them.
class Pace {
 public:
  // Tokens of a call, the last one of the text among them.
  static constexpr std::array<size_t, 6> kSizes{2, 4, 8, 16, 32, 64};

  // Stands for a match where a draft model proposes, which it can at any place.
  static constexpr size_t kDrafted = Lookup::kLongest + 1;

  // Another text: how long calls take is still known, and how often the draft was right.
  void restart() {
    std::fill(seen_.begin(), seen_.end() - 1, Seen());
    balance_ = 0;
    tokens_ = 0;
  }

  // How many tokens to propose, at most `most`, where `matched` tokens were found before; 0 where a
  // single token is faster, or is to be timed first. `behind` nanoseconds come before the proposals.
  size_t proposed(size_t matched, size_t most, double behind = 0) const {
    if (matched == kDrafted && (singles_ < kFirstSingles || since_single_ >= kMostWithout)) {
      return 0;
    }
    const double trial = matched == kDrafted ? kDraftTrial : kTrial;
    return best(matched, most, balance_ + single_ * (trial + kLoss * tokens_) - behind);
  }

  // Whether a draft may pay, whatever a trial costs.
  bool promises() const {
    return single_ == 0 ||
        best(kDrafted, kSizes.back(), std::numeric_limits<double>::infinity()) != 0;
  }

  // A call that took a single token.
  void add_single(double ns) {
    count_tokens(1);
    since_single_ = 0;
    // The first calls of a process may take several times as long.
    single_ = ++singles_ <= kFirstSingles && single_ != 0 ? std::min(single_, ns)
                                                          : smoothed(single_, ns, 0.1);
  }

  // A call that verified `proposed` tokens, of which `accepted` were right, and gave one more. In
  // its time are `drafting` for the proposals, and `behind` before that.
  void add_verified(size_t matched, size_t proposed, size_t accepted, double ns,
                    double drafting = 0, double behind = 0) {
    since_single_ += 1;
    Seen& seen = seen_[kind(matched)];
    seen.forget(kKept);
    seen.first.add(accepted > 0 ? 1 : 0, 1);
    if (accepted > 0) {
      const auto later = static_cast<double>(accepted - 1);
      seen.later.add(later, later + (accepted < proposed ? 1 : 0));
    }
    double& cost = costs_[index_of(proposed + 1)];
    cost = smoothed(cost, ns - drafting - behind, 0.25);
    drafting_ = smoothed(drafting_, drafting / static_cast<double>(proposed), 0.25);
    const auto tokens = static_cast<double>(accepted + 1);
    balance_ = std::min(balance_ + tokens * single_ - ns, kSaved * single_);
    count_tokens(tokens);
  }

 private:
  // How many of some proposed tokens were right.
  struct Share {
    double right = 0, all = 0;

    void add(double more_right, double more) {
      right += more_right;
      all += more;
    }
    // With a share that counts as so many tokens, as long as little is seen.
    double with(double prior, double count) const {
      return std::min((right + prior * count) / (all + count), 0.99);
    }
  };
  // Of the first tokens of proposals, and of those that followed a right one: a match is either no
  // repetition, or a long one.
  struct Seen {
    Share first, later;

    void forget(double kept) {
      for (double* number : {&first.right, &first.all, &later.right, &later.all}) {
        *number *= kept;
      }
    }
  };
  struct Likely {
    double first, later;
  };

  // A part of what was seen is forgotten with each call that verifies, and with each token, so that
  // speculation is tried again some time after it did not pay.
  static constexpr double kKept = 0.95, kKeptByToken = 0.99, kDraftKeptByToken = 0.998;
  // It has to be this much faster to be worth a trial. A draft can be tried at each token, so that
  // estimates of a few percent would be followed for long.
  static constexpr double kMargin = 1.02, kDraftMargin = 1.1;
  // What trials may cost: so many single tokens at first, and this part of all. What was saved
  // before counts up to a bound, so that speculation ends soon where the text becomes another.
  static constexpr double kTrial = 1.2, kLoss = 0.012, kSaved = 5;
  // A draft is tried at the beginning of a text, which it has just read: later, it would first have
  // to take all that was generated without it.
  static constexpr double kDraftTrial = 4;
  // A draft can propose at each token, and single ones would never be timed: so many are at first,
  // and one after so many calls.
  static constexpr size_t kFirstSingles = 3, kMostWithout = 32;
  // Matches of up to so many tokens, and how often the next token is right, as far as nothing is
  // seen in the text itself; and how often one is after a right one.
  static constexpr std::array<std::pair<size_t, double>, 6> kFirst{
      {{2, 0.4}, {3, 0.5}, {5, 0.65}, {9, 0.8}, {Lookup::kLongest, 0.95}, {kDrafted, 0.85}}};
  static constexpr double kLater = 0.75;
  // How much these count, in tokens.
  static constexpr double kFirstCounts = 3, kLaterCounts = 4, kDraftCounts = 6;

  // How many tokens to propose for the most tokens by time, where a trial may cost `room` more than
  // a single token.
  size_t best(size_t matched, size_t most, double room) const {
    if (matched == 0 || single_ == 0) {
      return 0;
    }
    const Likely likely = likely_after(matched);
    double best = (matched == kDrafted ? kDraftMargin : kMargin) / single_;
    size_t count = 0;
    for (size_t i = 0; i < kSizes.size(); ++i) {
      const size_t size = std::min(kSizes[i], most + 1);
      const double cost =
          cost_of(i) + (matched == kDrafted ? drafting_ * static_cast<double>(size - 1) : 0);
      // The tokens that are expected: 1 + first (1 + later + later^2 + ...).
      const double expected = 1 +
          likely.first * (1 - std::pow(likely.later, size - 1)) / (1 - likely.later);
      if (size >= kSizes[0] && cost - single_ <= room && expected / cost > best) {
        best = expected / cost;
        count = size - 1;
      }
      if (size < kSizes[i]) {
        break;
      }
    }
    return count;
  }

  static size_t kind(size_t matched) {
    size_t i = 0;
    while (i + 1 < kFirst.size() && kFirst[i].first < matched) {
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
  static double smoothed(double before, double now, double part) {
    return before == 0 ? now : before + part * (std::min(now, 3 * before) - before);
  }

  Likely likely_after(size_t matched) const {
    const size_t i = kind(matched);
    if (matched == kDrafted) { // whose first token is as likely as the others
      Share both = seen_[i].first;
      both.add(seen_[i].later.right, seen_[i].later.all);
      const double likely = both.with(kFirst[i].second, kDraftCounts);
      return {likely, likely};
    }
    return {seen_[i].first.with(kFirst[i].second, kFirstCounts),
            seen_[i].later.with(kLater, kLaterCounts)};
  }

  // In nanoseconds; where none of the size was measured, by the nearest one that was.
  double cost_of(size_t index) const {
    const auto guess = [](size_t i) { return 1.5 + static_cast<double>(kSizes[i]) / 8; };
    for (size_t away = 0; away < kSizes.size(); ++away) {
      for (const size_t i : {index - away, index + away}) {
        if (i < kSizes.size() && costs_[i] != 0) {
          return costs_[i] * guess(index) / guess(i);
        }
      }
    }
    return single_ * guess(index);
  }

  void count_tokens(double tokens) {
    tokens_ += tokens;
    for (Seen& seen : seen_) {
      seen.forget(std::pow(&seen == &seen_.back() ? kDraftKeptByToken : kKeptByToken, tokens));
    }
  }

  // Nanoseconds of a call with a single token, and with tokens of each size; 0 for none so far.
  double single_ = 0;
  std::array<double, kSizes.size()> costs_{};
  // Single tokens so far, and calls that verified since the last one.
  size_t singles_ = 0, since_single_ = 0;
  // Nanoseconds that a draft takes for a proposal.
  double drafting_ = 0;
  std::array<Seen, kFirst.size()> seen_{};
  // Nanoseconds that were saved in this text, or lost, and its tokens.
  double balance_ = 0, tokens_ = 0;
};
