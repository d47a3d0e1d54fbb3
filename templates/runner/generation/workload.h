// Generates text as a request says, and tells the time of every token.
#pragma once

#include <ctime>
#include <functional>
#include <optional>

#include "../arguments.h"
#include "../processors.h"
#include "calls.h"
#include "draft.h"
#include "sampling.h"
#include "speculation.h"

// One repetition of a point.
struct Text {
  const Point* point;
  // How much of the prompt is in the cache.
  size_t taken = 0;
  // Of each call of the prefill, until the first token, and of each further one.
  std::vector<int64_t> prefill_ns;
  int64_t first_token_ns = 0;
  // Tokens that one call verified have equal parts of its time.
  std::vector<int64_t> token_ns;
  std::vector<int64_t> tokens;
  // Where the point follows a text: of each token, those of the request's `logits`.
  std::vector<std::vector<float>> logits;
  bool stopped = false;
  // Calls after the first token, those of them that verified, and the tokens that were proposed to
  // these, and were right.
  int64_t calls = 0, verified_calls = 0, proposed = 0, accepted = 0;
  // What a draft took, all of it after the first token.
  int64_t draft_ns = 0;
};

// As JSON, which has no infinity.
inline std::string json_float(float value) {
  constexpr float most = std::numeric_limits<float>::max();
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(std::clamp(value, -most, most)));
  return text;
}

inline std::string json_text(const Text& text) {
  return "\n    {\"point\": " + json_string(text.point->name) +
      ", \"prefill_ms\": " + json_list(text.prefill_ns, json_ms) +
      ", \"first_token_ms\": " + json_ms(text.first_token_ns) +
      ", \"token_ms\": " + json_list(text.token_ns, json_ms) +
      ", \"token_ids\": " + json_sizes(text.tokens) +
      ", \"logits\": " +
      json_list(text.logits, [](const auto& each) { return json_list(each, json_float); }) +
      ", \"calls\": " + std::to_string(text.calls) +
      ", \"verified_calls\": " + std::to_string(text.verified_calls) +
      ", \"proposed\": " + std::to_string(text.proposed) +
      ", \"accepted\": " + std::to_string(text.accepted) +
      ", \"draft_ms\": " + json_ms(text.draft_ns) +
      ", \"stopped\": " + (text.stopped ? "true" : "false") + "}";
}

inline void check_id(int64_t id, int64_t vocabulary, const std::string& what) {
  if (id < 0 || id >= vocabulary) {
    throw Failure(kInputs, what + " has the id " + std::to_string(id) + ", the vocabulary " +
                  std::to_string(vocabulary) + " tokens");
  }
}

// Checks a point before anything runs, as a run may take minutes.
inline void check_point(const Point& point, const Calls& calls) {
  const int64_t context = calls.context();
  const auto vocabulary = static_cast<int64_t>(calls.vocabulary());
  const auto prompt = static_cast<int64_t>(point.prompt.size());
  // Differences, since the sum of these numbers may overflow.
  if (prompt > context || point.depth > context - prompt ||
      point.new_tokens - 1 > context - prompt - point.depth) {
    throw Failure(kInputs, "point " + point.name + ": " + std::to_string(point.depth) +
                  " tokens in the cache, a prompt of " + std::to_string(prompt) + " and " +
                  std::to_string(point.new_tokens) + " new tokens do not fit into a context of " +
                  std::to_string(context));
  }
  for (const auto* ids : {&point.prompt, &point.followed}) {
    for (const int64_t id : *ids) {
      check_id(id, vocabulary, "point " + point.name + ": the prompt");
    }
  }
}

// A program that cannot verify would generate as without speculation.
inline void check_speculation(const Request& request, const Calls& calls, const Draft* draft) {
  if (request.proposals != Proposals::kNone && calls.verifies(0) < 2) {
    throw Failure(kInputs, "speculation needs a method that gives the logits of several tokens, from "
                  "which the position can be set back");
  }
  if (draft != nullptr && draft->vocabulary() != calls.vocabulary()) {
    throw Failure(kInputs, "the draft has a vocabulary of " + std::to_string(draft->vocabulary()) +
                  " tokens, the program one of " + std::to_string(calls.vocabulary()));
  }
  if (draft != nullptr && draft->context() < calls.context()) {
    throw Failure(kInputs, "the draft has a context of " + std::to_string(draft->context()) +
                  ", the program one of " + std::to_string(calls.context()));
  }
}

// The draft that a request asks for; none where something else proposes, or nothing does.
inline std::unique_ptr<Draft> load_draft(const Request& request, const std::string& program,
                                         const std::vector<std::string>& data) {
  if (request.proposals != Proposals::kDraft) {
    return nullptr;
  }
  if (program.empty()) {
    throw Failure(kArguments, "the request has a draft, and no --draft names its program");
  }
  return std::make_unique<Draft>(program, data, request);
}

// Called after each prefill chunk and each new token; returns false to stop the text.
using TextCallback = std::function<bool(const Text&)>;

class Generator {
 public:
  // draft: Proposes tokens, where the request asks for that; else null.
  // pace: Of speculation; several texts may share what it has measured.
  Generator(const Request& request, Calls& calls, Draft* draft, Pace& pace, TextCallback on_text)
      : request_(request), calls_(calls), draft_(draft), pace_(pace), sampler_(request.sampling),
        on_text_(std::move(on_text)) {}

  // Generates all points. The cache is filled once for each, and again if a repetition has
  // overwritten positions that the next one needs.
  std::vector<Text> run() {
    std::vector<Text> texts;
    for (const Point& point : request_.points) {
      for (int64_t i = 0; i < point.repetitions; ++i) {
        if (i == 0 || !calls_.reaches(point.depth)) {
          fill(point);
        }
        texts.push_back(generate(point));
      }
    }
    return texts;
  }

  // Generates one repetition; the cache must have the point's depth.
  Text generate(const Point& point) {
    Text text;
    text.point = &point;
    sampler_.restart(point.before);
    sampler_.see(point.prompt);
    calls_.begin_text();
    const int64_t started = now_ns();
    if (!prefill(text)) {
      return text;
    }
    int64_t position = point.depth + static_cast<int64_t>(point.prompt.size());
    const std::vector<int64_t> first{choose(text, logits_, position)};
    text.first_token_ns = now_ns() - started;
    bool wanted = add(text, first);
    int64_t before = now_ns();
    if (wanted) {
      begin_speculation(text);
    }
    while (wanted) {
      const std::vector<int64_t> chosen = next(text, position);
      position += static_cast<int64_t>(chosen.size());
      wanted = add(text, chosen, now_ns() - before);
      before = now_ns();
    }
    return text;
  }

 private:
  int64_t left(const Text& text) const {
    return text.point->new_tokens - static_cast<int64_t>(text.tokens.size());
  }

  // Adds tokens to a text, of which all but the first of a text took `ns` together; whether more
  // are to come.
  bool add(Text& text, const std::vector<int64_t>& tokens, int64_t ns = 0) {
    const auto count = static_cast<int64_t>(tokens.size());
    for (int64_t i = 0; i < count; ++i) {
      if (!text.tokens.empty()) {
        text.token_ns.push_back(ns * (i + 1) / count - ns * i / count);
      }
      text.tokens.push_back(tokens[static_cast<size_t>(i)]);
      text.stopped = request_.stop_ids.count(text.tokens.back()) != 0;
      if (!on_text_(text) || text.stopped || left(text) == 0) {
        return false;
      }
    }
    return true;
  }

  // The tokens that follow after one call.
  std::vector<int64_t> next(Text& text, int64_t position) {
    const bool follows = text.point->follows;
    fed_ = {follows ? text.point->followed[text.tokens.size() - 1] : text.tokens.back()};
    text.calls += 1;
    if (request_.proposals == Proposals::kNone || follows) {
      return single(text, position);
    }
    extend(fed_.back());
    const int64_t started = now_ns();
    const int64_t most = std::max<int64_t>(most_proposed(text, position), 0);
    const size_t matched = most == 0 ? 0 : draft_ ? Pace::kDrafted : lookup_.find();
    const size_t count = pace_.proposed(matched, static_cast<size_t>(most),
                                        draft_ ? draft_->behind_ns(whole_) : 0);
    if (count == 0) {
      std::vector<int64_t> chosen = single(text, position);
      pace_.add_single(static_cast<double>(now_ns() - started), matched,
                       lookup_.proposes(chosen.front()));
      return chosen;
    }
    std::vector<int64_t> proposals;
    int64_t drafting = 0, behind = 0;
    if (draft_) {
      behind = draft_->propose(whole_, count, request_.stop_ids, proposals);
      drafting = now_ns() - started - behind;
      text.draft_ns += behind + drafting;
    } else {
      lookup_.propose(count, proposals);
    }
    std::vector<int64_t> chosen = verified(text, position, proposals);
    const size_t accepted = chosen.size() - 1;
    for (size_t i = 0; i < accepted; ++i) {
      extend(chosen[i]);
    }
    text.verified_calls += 1;
    text.proposed += static_cast<int64_t>(proposals.size());
    text.accepted += static_cast<int64_t>(accepted);
    pace_.add_verified(matched, proposals.size(), accepted, static_cast<double>(now_ns() - started),
                       static_cast<double>(drafting), static_cast<double>(behind));
    return chosen;
  }

  int64_t most_proposed(const Text& text, int64_t position) const {
    const int64_t most = std::min(left(text), calls_.verifies(position)) - 1;
    return draft_ ? std::min(most, draft_->most()) : most;
  }

  // One more token of the text that is known.
  void extend(int64_t token) { draft_ ? whole_.push_back(token) : lookup_.add(token); }

  std::vector<int64_t> single(Text& text, int64_t position) {
    sampler_.see(fed_);
    calls_.take(fed_.data(), 1, position, logits_, left(text) - 1);
    return {choose(text, logits_, position + 1)};
  }

  // The proposals that the sampler chooses, too, and the token after them.
  std::vector<int64_t> verified(Text& text, int64_t position,
                                const std::vector<int64_t>& proposals) {
    fed_.insert(fed_.end(), proposals.begin(), proposals.end());
    const float* logits =
        calls_.verify(fed_.data(), static_cast<int64_t>(fed_.size()), position);
    return choose_verified(fed_, request_.stop_ids, [&](size_t i) {
      sampler_.see({fed_[i]});
      return choose(text, logits + i * calls_.vocabulary(),
                    position + 1 + static_cast<int64_t>(i));
    });
  }

  // The time is that of the token after the first.
  void begin_speculation(Text& text) {
    const Point& point = *text.point;
    pace_.restart();
    if (draft_ == nullptr) {
      lookup_.restart(point.before, point.prompt);
      return;
    }
    const int64_t started = now_ns();
    whole_ = before(point);
    whole_.insert(whole_.end(), point.prompt.begin(), point.prompt.end());
    draft_->keep(point.depth);
    if (pace_.promises()) {
      draft_->follow(whole_);
    }
    text.draft_ns += now_ns() - started;
  }

  // The text before a prompt: where it is none of a request, the prompt's tokens again and again.
  static std::vector<int64_t> before(const Point& point) {
    std::vector<int64_t> tokens = point.before;
    for (size_t i = tokens.size(); i < static_cast<size_t>(point.depth); ++i) {
      tokens.push_back(point.prompt[i % point.prompt.size()]);
    }
    return tokens;
  }

  void fill(const Point& point) {
    const std::vector<int64_t> tokens = before(point);
    calls_.begin_text();
    take(tokens, 0, 0, [](int64_t, size_t) { return true; });
    if (draft_ != nullptr && !tokens.empty()) {
      draft_->follow(tokens);
    }
  }

  // Takes all tokens, in as many calls as it needs, and tells the time of each, and how many were
  // taken; whether nothing ended it before. `later` tokens come after them, one by one.
  template <typename Tell>
  bool take(const std::vector<int64_t>& tokens, int64_t position, int64_t later, Tell tell) {
    for (size_t taken = 0; taken < tokens.size();) {
      const int64_t started = now_ns();
      taken += static_cast<size_t>(
          calls_.take(tokens.data() + taken, static_cast<int64_t>(tokens.size() - taken),
                      position + static_cast<int64_t>(taken), logits_, later));
      if (!tell(now_ns() - started, taken)) {
        return false;
      }
    }
    return true;
  }

  bool prefill(Text& text) {
    const Point& point = *text.point;
    const auto on_call = [&](int64_t ns, size_t taken) {
      text.prefill_ns.push_back(ns);
      text.taken = taken;
      return on_text_(text);
    };
    return take(point.prompt, point.depth, point.new_tokens - 1, on_call);
  }

  // The token after `position` others.
  int64_t choose(Text& text, const float* logits, int64_t position) {
    if (text.point->follows) {
      text.logits.emplace_back();
      for (const int64_t id : request_.logit_ids) {
        text.logits.back().push_back(logits[id]);
      }
    }
    try {
      return sampler_.choose(logits, calls_.vocabulary());
    } catch (const Failure& failure) {
      throw Failure(failure.code, "point " + text.point->name + ": after " +
                    std::to_string(position) + " tokens, " + failure.what());
    }
  }

  const Request& request_;
  Calls& calls_;
  Draft* const draft_;
  Pace& pace_;
  Sampler sampler_;
  Lookup lookup_;
  // The text that a draft follows, all of it.
  std::vector<int64_t> whole_;
  const TextCallback on_text_;
  const float* logits_ = nullptr;
  // Tokens of the next call.
  std::vector<int64_t> fed_;
};

// Prints each token as soon as it is chosen.
inline bool stream(const Text& text) {
  if (!text.tokens.empty()) {
    std::fprintf(answers(), "%lld\n", static_cast<long long>(text.tokens.back()));
    std::fflush(answers());
  }
  return true;
}

inline void generate(Arguments& arguments) {
  auto& [listing, texts, counts, data, draft_data, given] = arguments;
  const Request request = read_request(texts["--generation"]);
  std::ostringstream json;
  std::optional<MemoryWatch> watch;
  if (counts["--watch-memory"] != 0) {
    watch.emplace();
  }
  json << begin_results(texts["--program"], counts["--threads"], !texts["--etdump"].empty());
  allocate_together();
  const bool several = share_memory(request.methods);
  if (several || share_memory(request.draft_methods)) {
    share_packed_weights();
  }
  Module module(texts["--program"], data, load_mode(request.in_memory), nullptr, nullptr, nullptr,
                several);
  json << load_program(module, texts["--program"]);
  const auto draft = load_draft(request, texts["--draft"], draft_data);
  Calls calls(module, request, texts["--etdump"]);
  json << ",\n  \"rss_after_load_bytes\": " << peak_rss_bytes();
  if (watch) {
    watch->loaded();
  }
  check_speculation(request, calls, draft.get());
  for (const Point& point : request.points) {
    check_point(point, calls);
  }
  for (const int64_t id : request.logit_ids) {
    check_id(id, static_cast<int64_t>(calls.vocabulary()), "the line of logits");
  }
  const Processors before;
  const TextCallback silent = [](const Text&) { return true; };
  const TextCallback on_text = counts["--stream"] != 0 ? TextCallback(stream) : silent;
  Pace pace;
  const std::vector<Text> runs = Generator(request, calls, draft.get(), pace, on_text).run();
  json << json_processors(before, Processors())
       << ",\n  \"peak_rss_bytes\": " << peak_rss_bytes()
       << ",\n  \"generation\": {\"load_methods_ms\": " << calls.json()
       << ", \"load_draft_ms\": " << json_ms(draft ? draft->load_ns() : 0)
       << ", \"encode_ms\": " << calls.json_encode()
       << ", \"huge_page_bytes\": " << calls.huge_page_bytes()
       << ", \"shared_memory_bytes\": " << calls.shared_bytes()
       << ", \"traced\": " << calls.json_traced()
       << ", \"runs\": " << json_list(runs, json_text) << "}";
  if (watch) {
    json << watch->json(texts["--program"]);
  }
  calls.write_traces();
  write_results(texts["--results"], json.str());
}
