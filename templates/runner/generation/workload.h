// Generates text as a request says, and tells the time of every token.
#pragma once

#include <ctime>
#include <functional>
#include <optional>

#include "../arguments.h"
#include "../processors.h"
#include "calls.h"
#include "sampling.h"

// One repetition of a point.
struct Text {
  const Point* point;
  // How much of the prompt is in the cache.
  size_t taken = 0;
  // Of each call of the prefill, until the first token, and of each further one.
  std::vector<int64_t> prefill_ns;
  int64_t first_token_ns = 0;
  std::vector<int64_t> token_ns;
  std::vector<int64_t> tokens;
  // Where the point follows a text: of each token, those of the request's `logits`.
  std::vector<std::vector<float>> logits;
  bool stopped = false;
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

// Called after each prefill chunk and each new token; returns false to stop the text.
using TextCallback = std::function<bool(const Text&)>;

class Generator {
 public:
  Generator(const Request& request, Calls& calls, TextCallback on_text)
      : request_(request), calls_(calls), sampler_(request.sampling), on_text_(std::move(on_text)) {}

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
    choose(text, position);
    text.first_token_ns = now_ns() - started;
    while (on_text_(text) && !text.stopped &&
           static_cast<int64_t>(text.tokens.size()) < point.new_tokens) {
      const int64_t before = now_ns();
      const int64_t later = point.new_tokens - 1 - static_cast<int64_t>(text.tokens.size());
      const int64_t* next =
          point.follows ? &point.followed[text.tokens.size() - 1] : &text.tokens.back();
      sampler_.see({*next});
      calls_.take(next, 1, position++, logits_, later);
      choose(text, position);
      text.token_ns.push_back(now_ns() - before);
    }
    return text;
  }

 private:
  void fill(const Point& point) {
    std::vector<int64_t> tokens(static_cast<size_t>(point.depth));
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = point.prompt[i % point.prompt.size()];
    }
    calls_.begin_text();
    take(tokens, 0, 0, [](int64_t, size_t) { return true; });
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

  void choose(Text& text, int64_t position) {
    try {
      text.tokens.push_back(sampler_.choose(logits_, calls_.vocabulary()));
    } catch (const Failure& failure) {
      throw Failure(failure.code, "point " + text.point->name + ": after " +
                    std::to_string(position) + " tokens, " + failure.what());
    }
    if (text.point->follows) {
      text.logits.emplace_back();
      for (const int64_t id : request_.logit_ids) {
        text.logits.back().push_back(logits_[id]);
      }
    }
    text.stopped = request_.stop_ids.count(text.tokens.back()) != 0;
  }

  const Request& request_;
  Calls& calls_;
  Sampler sampler_;
  const TextCallback on_text_;
  const float* logits_ = nullptr;
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
  auto& [listing, texts, counts, data, given] = arguments;
  const Request request = read_request(texts["--generation"]);
  std::ostringstream json;
  std::optional<MemoryWatch> watch;
  if (counts["--watch-memory"] != 0) {
    watch.emplace();
  }
  json << begin_results(texts["--program"], counts["--threads"], !texts["--etdump"].empty());
  allocate_together();
  const bool several = share_memory(request.methods);
  if (several) {
    share_packed_weights();
  }
  Module module(texts["--program"], data, Module::LoadMode::Mmap, nullptr, nullptr, nullptr, several);
  json << load_program(module, texts["--program"]);
  Calls calls(module, request, texts["--etdump"]);
  json << ",\n  \"rss_after_load_bytes\": " << peak_rss_bytes();
  if (watch) {
    watch->loaded();
  }
  for (const Point& point : request.points) {
    check_point(point, calls);
  }
  for (const int64_t id : request.logit_ids) {
    check_id(id, static_cast<int64_t>(calls.vocabulary()), "the line of logits");
  }
  const Processors before;
  const TextCallback silent = [](const Text&) { return true; };
  const TextCallback on_text = counts["--stream"] != 0 ? TextCallback(stream) : silent;
  const std::vector<Text> runs = Generator(request, calls, on_text).run();
  json << json_processors(before, Processors())
       << ",\n  \"peak_rss_bytes\": " << peak_rss_bytes()
       << ",\n  \"generation\": {\"load_methods_ms\": " << calls.json()
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
