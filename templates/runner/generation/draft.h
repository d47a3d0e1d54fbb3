// Proposes the tokens that a second, smaller program with the same vocabulary finds most probable
// (Leviathan et al., see speculation.h). Its cache follows the text: whatever it has taken that is
// not in the text any more is left behind, and whatever it has not taken yet is taken before it
// proposes.
#pragma once

#include "calls.h"
#include "sampling.h"

class Draft {
 public:
  // data: Files with weights that the program names.
  Draft(const std::string& program, const std::vector<std::string>& data, const Request& request)
      : module_(program, data, load_mode(request.draft_in_memory), nullptr, nullptr, nullptr,
                share_memory(request.draft_methods)) {
    told([&] {
      verify(program);
      const int64_t started = now_ns();
      load_program(module_, program);
      own_.methods = request.draft_methods;
      own_.rewind = request.draft_rewind;
      calls_.emplace(module_, own_, "");
      load_ns_ = now_ns() - started;
    });
  }

  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  int64_t load_ns() const { return load_ns_; }
  size_t vocabulary() const { return calls_->vocabulary(); }
  int64_t context() const { return calls_->context(); }
  // Of the proposals, all but the last are taken, and may be wrong.
  int64_t most() const { return std::min(own_.rewind, calls_->context()) + 1; }

  // Forgets what comes after so many tokens, as the other program does before a prompt.
  void keep(int64_t tokens) {
    cached_.resize(std::min(cached_.size(), static_cast<size_t>(tokens)));
  }

  // Takes what it has not taken yet of a text.
  void follow(const std::vector<int64_t>& text) {
    told([&] { take(text); });
  }

  // How long it will take until it can propose what follows a text; 0 where it is not behind, but
  // for the tokens that the last proposals gave.
  double behind_ns(const std::vector<int64_t>& text) const {
    const size_t count = text.size() - known(text);
    return count > kFew ? static_cast<double>(count) * taking_ns_ : 0;
  }

  // Proposes up to `count` tokens after a text, none after a stop token; gives the nanoseconds that
  // it was behind.
  int64_t propose(const std::vector<int64_t>& text, size_t count,
                  const std::set<int64_t>& stop_ids, std::vector<int64_t>& proposals) {
    const int64_t started = now_ns();
    int64_t caught_up = started;
    told([&] {
      std::vector<int64_t> whole = text;
      if (text.size() - known(text) > kFew) {
        whole.pop_back();
        take(whole);
        whole.push_back(text.back());
        caught_up = now_ns();
      }
      while (proposals.size() < count &&
             (proposals.empty() || stop_ids.count(proposals.back()) == 0)) {
        take(whole);
        proposals.push_back(static_cast<int64_t>(most_probable(logits_, vocabulary())));
        whole.push_back(proposals.back());
      }
    });
    return caught_up - started;
  }

 private:
  // So many tokens at most are left over from the last proposals: what they ended with, and the
  // token after that.
  static constexpr size_t kFew = 2;

  // How many tokens of a text need not be taken again. The last one gives the logits.
  size_t known(const std::vector<int64_t>& text) const {
    const size_t most = std::min(cached_.size(), text.size() - 1);
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(most);
    const auto same = std::mismatch(text.begin(), end, cached_.begin()).first - text.begin();
    return calls_->reaches(same) ? static_cast<size_t>(same) : 0;
  }

  void take(const std::vector<int64_t>& text) {
    const int64_t started = now_ns();
    const size_t first = known(text);
    cached_.resize(first);
    for (size_t at = first; at < text.size(); at = cached_.size()) {
      const auto taken = calls_->take(text.data() + at, static_cast<int64_t>(text.size() - at),
                                      static_cast<int64_t>(at), logits_);
      cached_.insert(cached_.end(), text.begin() + static_cast<std::ptrdiff_t>(at),
                     text.begin() + static_cast<std::ptrdiff_t>(at) + taken);
    }
    if (const size_t taken = text.size() - first; taken > kFew) {
      taking_ns_ = static_cast<double>(now_ns() - started) / static_cast<double>(taken);
    }
  }

  // Failures say which of the programs it was.
  template <typename Do>
  static void told(Do what) {
    try {
      what();
    } catch (const Failure& failure) {
      throw Failure(failure.code, std::string("the draft: ") + failure.what());
    }
  }

  Module module_;
  Request own_;
  std::optional<Calls> calls_;
  const float* logits_ = nullptr;
  // What is in its cache.
  std::vector<int64_t> cached_;
  int64_t load_ns_ = 0;
  // Nanoseconds for a token of several that are taken together.
  double taking_ns_ = 0;
};
