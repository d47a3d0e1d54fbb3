// Answers one request after another, from standard input, with one program and one cache;
// etdeploy/runner/generation.py describes the lines.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>

#include "workload.h"

// The lines of standard input.
class Lines {
 public:
  // Whether a line is there, or the input has ended; waits for it if `wait` does.
  bool ready(bool wait) {
    while (!has_line() && !ended_) {
      pollfd input{STDIN_FILENO, POLLIN, 0};
      const int found = poll(&input, 1, wait ? -1 : 0);
      if (found > 0) {
        read();
      } else if (!wait) {
        return false;
      }
    }
    return true;
  }

  bool ended() const { return ended_ && !has_line(); }
  const std::string& front() const { return front_; }

  // Takes the first line away; one has to be there.
  std::string next() {
    std::string line = std::move(front_);
    split();
    return line;
  }

 private:
  bool has_line() const { return whole_; }

  void read() {
    char part[4096];
    const ssize_t size = ::read(STDIN_FILENO, part, sizeof part);
    if (size > 0) {
      const std::string_view text(part, static_cast<size_t>(size));
      begun_ += text;
      if (!whole_ && text.find('\n') != text.npos) {
        split();
      }
    } else if (size == 0 || errno != EINTR) {
      ended_ = true; // what has no end of line is no line
    }
  }

  void split() {
    const size_t end = begun_.find('\n');
    whole_ = end != begun_.npos;
    front_ = whole_ ? begun_.substr(0, end) : "";
    begun_.erase(0, whole_ ? end + 1 : 0);
  }

  std::string begun_, front_;
  bool whole_ = false, ended_ = false;
};

// Exits when the host disappears and no line comes any more.
inline void exit_when_idle(unsigned seconds) {
  std::signal(SIGALRM, [](int) { _exit(0); });
  alarm(seconds);
}

class Listener {
 public:
  // folder: What paths in lines are relative to.
  Listener(const Request& request, Calls& calls, Draft* draft, unsigned idle_timeout_s,
           std::filesystem::path folder)
      : request_(request), calls_(calls), draft_(draft), idle_timeout_s_(idle_timeout_s),
        folder_(std::move(folder)) {}

  // Answers lines until the input ends.
  void listen() {
    exit_when_idle(idle_timeout_s_);
    reply("ready");
    while (lines_.ready(true) && !lines_.ended()) {
      alarm(idle_timeout_s_);
      const std::string line = lines_.next();
      if (line != kStop) { // for an answer that had ended before
        Words words("line " + std::to_string(++number_) + " of the input", line);
        process(words);
      }
    }
  }

 private:
  static constexpr const char* kStop = "stop";

  static void reply(const std::string& line) {
    std::fprintf(answers(), "%s\n", line.c_str());
    std::fflush(answers());
  }

  void process(Words& words) {
    const std::string kind = words.word("a word");
    if (kind == "answer") {
      answer(words);
    } else if (kind == "feed") {
      feed(words);
    } else if (kind == "logits") {
      write_logits(words);
    } else if (kind == "score") {
      score(words);
    } else if (kind == "save") {
      calls_.save(path(words));
      reply("saved");
    } else if (kind == "load") {
      load(words);
    } else {
      words.require(kind == "remove", "answer, feed, logits, score, save, load, remove or stop");
      std::remove(path(words).c_str());
      reply("removed");
    }
  }

  std::string path(Words& words) const { return (folder_ / words.rest("a path")).string(); }

  // Reads where a prompt begins, which is in the cache up to there.
  int64_t read_position(Words& words) {
    const int64_t position = words.number("a position from 0 on", 0);
    const auto filled = static_cast<int64_t>(cache_.size());
    words.require(position <= filled, "a position up to " + std::to_string(filled));
    return position;
  }

  // Reads the rest of a line: ids that fit into the context.
  void read_prompt(Words& words, Point& point) {
    read_ids(words, [&](int64_t id) { point.prompt.push_back(id); });
    words.require(!point.prompt.empty(), "ids");
    check_point(point, calls_);
    cache_.resize(static_cast<size_t>(point.depth));
    point.before = cache_;
  }

  // Restores the cache from a snapshot. The line has the furthest position that a call reached, which
  // may be beyond the cached tokens, the path of their ids, and that of the snapshot.
  void load(Words& words) {
    const int64_t end = words.number("the end of a call from 0 on", 0);
    std::vector<int64_t> tokens = read_tokens((folder_ / words.word("the path of tokens")).string());
    const std::string snapshot = path(words);
    const auto size = static_cast<int64_t>(tokens.size());
    words.require(end >= size, "an end that is not before that of the tokens");
    if (size > calls_.context()) {
      throw Failure(kInputs, "the snapshot has " + std::to_string(size) + " tokens, the context " +
                    std::to_string(calls_.context()));
    }
    for (const int64_t id : tokens) { // they are looked up among logits
      check_id(id, static_cast<int64_t>(calls_.vocabulary()), "the snapshot");
    }
    calls_.load(snapshot, end);
    cache_ = std::move(tokens);
    reply("loaded");
  }

  void answer(Words& words) {
    Request asked = request_;
    const int64_t position = read_position(words);
    Point point = new_point(position, words.number("new tokens from 1 on", 1));
    asked.sampling = read_sampling(words);
    read_prompt(words, point);
    const Text text =
        Generator(asked, calls_, draft_, pace_, [&](const Text& so_far) { return tell(so_far); })
            .generate(point);
    const auto taken = point.prompt.begin() + static_cast<std::ptrdiff_t>(text.taken);
    cache_.insert(cache_.end(), point.prompt.begin(), taken);
    if (!text.tokens.empty()) { // the last one is not fed back
      cache_.insert(cache_.end(), text.tokens.begin(), text.tokens.end() - 1);
    }
    tell_end(text);
  }

  Point new_point(int64_t depth, int64_t new_tokens) const {
    return {"of line " + std::to_string(number_), depth, new_tokens, 1, {}, {}, {}};
  }

  void feed(Words& words) {
    Point point = new_point(read_position(words), 1);
    read_prompt(words, point);
    take(point, point.prompt, 0, [](size_t, const float*) {});
  }

  // How many of a prompt's last tokens have their logits looked at.
  static int64_t read_count(Words& words) { return words.number("a number from 1 on", 1); }

  // Writes the logits of the last tokens, one row after the other.
  void write_logits(Words& words) {
    Point point = new_point(read_position(words), 1);
    const int64_t count = read_count(words);
    const std::string path = (folder_ / words.word("a path")).string();
    read_prompt(words, point);
    words.require(count <= static_cast<int64_t>(point.prompt.size()), "as many ids as logits");
    std::ofstream file(path, std::ios::binary);
    const auto bytes = static_cast<std::streamsize>(calls_.vocabulary() * sizeof(float));
    take(point, point.prompt, count, [&](size_t, const float* logits) {
      file.write(reinterpret_cast<const char*>(logits), bytes);
      file.flush();
      if (!file) {
        throw Failure(kOutput, "cannot write " + path + ": " + std::strerror(errno));
      }
    });
  }

  // Tells how probable each of the last tokens is after those before it, and which one is the most
  // probable there. The last one is not fed.
  void score(Words& words) {
    Point point = new_point(read_position(words), 1);
    const int64_t count = read_count(words);
    read_prompt(words, point);
    const auto length = static_cast<int64_t>(point.prompt.size());
    words.require(count < length, "more ids than scores");
    const std::vector<int64_t> fed(point.prompt.begin(), point.prompt.end() - 1);
    take(point, fed, count, [&](size_t i, const float* logits) {
      const auto token = static_cast<size_t>(point.prompt[i + 1]);
      const size_t best = most_probable(logits, calls_.vocabulary());
      double sum = 0;
      for (size_t id = 0; id < calls_.vocabulary(); ++id) {
        sum += std::exp(double{logits[id]} - double{logits[best]});
      }
      const double best_log_probability = -std::log(sum);
      const double behind = double{logits[token]} - double{logits[best]};
      std::fprintf(answers(), "score %.17g %zu %.17g\n", best_log_probability + behind, best,
                   best_log_probability);
    });
  }

  // Takes tokens after a point's depth, several in a call; `each` gets the logits of the last
  // `count`, with their index. Tells how many are taken, and how the line ended.
  template <typename Each>
  void take(const Point& point, const std::vector<int64_t>& tokens, int64_t count, Each each) {
    const int64_t started = now_ns();
    const auto length = static_cast<int64_t>(tokens.size());
    const int64_t first = length - count;
    calls_.begin_text();
    ended_ = false;
    for (int64_t taken = 0; taken < length && !ended_;) {
      const int64_t position = point.depth + taken;
      const bool several = count > 1 && taken >= first;
      const int64_t most = several ? std::min(length - taken, calls_.verifies(position)) : 1;
      const int64_t* const next = tokens.data() + taken;
      int64_t now = most;
      if (most > 1) {
        const float* const logits = calls_.verify(next, most, position);
        for (int64_t i = 0; i < most; ++i) {
          each(static_cast<size_t>(taken + i),
               logits + static_cast<size_t>(i) * calls_.vocabulary());
        }
      } else {
        const float* logits = nullptr;
        const int64_t end = several ? taken + 1 : count == 1 ? length : first;
        now = calls_.take(next, end - taken, position, logits);
        if (taken + now > first) {
          each(static_cast<size_t>(taken + now - 1), logits);
        }
      }
      cache_.insert(cache_.end(), next, next + now);
      taken += now;
      tell_taken(static_cast<size_t>(taken));
    }
    reply((ended_ ? "end stop " : "end done ") + std::to_string(now_ns() - started));
  }

  // Prints how much of a prompt is taken, and looks whether it is to stop.
  void tell_taken(size_t taken) {
    alarm(idle_timeout_s_);
    reply("taken " + std::to_string(taken));
    ended_ = lines_.ready(false) && (lines_.ended() || lines_.front() == kStop);
  }

  // Prints the progress of a text; returns false if it is to stop.
  bool tell(const Text& text) {
    if (text.tokens.empty()) {
      tell_taken(text.taken);
      return !ended_;
    }
    alarm(idle_timeout_s_);
    const int64_t ns = text.token_ns.empty() ? text.first_token_ns : text.token_ns.back();
    std::fprintf(answers(), "token %lld %lld\n", static_cast<long long>(text.tokens.back()),
                 static_cast<long long>(ns));
    std::fflush(answers());
    ended_ = lines_.ready(false) && (lines_.ended() || lines_.front() == kStop);
    return !ended_;
  }

  void tell_end(const Text& text) {
    std::fprintf(answers(), "end %s", text.stopped ? "stop_token" : ended_ ? "stop" : "new_tokens");
    if (request_.proposals != Proposals::kNone) {
      for (const int64_t number : {text.calls, text.verified_calls, text.proposed, text.accepted}) {
        std::fprintf(answers(), " %lld", static_cast<long long>(number));
      }
    }
    if (draft_ != nullptr) {
      std::fprintf(answers(), " %lld", static_cast<long long>(text.draft_ns));
    }
    reply("");
  }

  const Request& request_;
  Calls& calls_;
  Draft* const draft_;
  Pace pace_;
  const unsigned idle_timeout_s_;
  const std::filesystem::path folder_;
  Lines lines_;
  // Tokens in the cache.
  std::vector<int64_t> cache_;
  // Lines that were answered.
  int64_t number_ = 0;
  bool ended_ = false;
};

inline void listen(Arguments& arguments) {
  auto& [listing, texts, counts, data, draft_data, given] = arguments;
  for (const char* option : {"--stream", "--watch-memory", "--etdump"}) {
    if (given.count(option) != 0) {
      throw Failure(kArguments, std::string(option) + " does not go with --listen");
    }
  }
  const Request request = read_request(texts["--generation"], true);
  begin_results(texts["--program"], counts["--threads"], false);
  allocate_together();
  const bool several = share_memory(request.methods);
  if (several || share_memory(request.draft_methods)) {
    share_packed_weights();
  }
  Module module(texts["--program"], data, load_mode(request.in_memory), nullptr, nullptr, nullptr,
                several);
  load_program(module, texts["--program"]);
  const auto draft = load_draft(request, texts["--draft"], draft_data);
  Calls calls(module, request, "", !request.encoder);
  check_speculation(request, calls, draft.get());
  const auto folder = std::filesystem::path(texts["--generation"]).parent_path();
  Listener(request, calls, draft.get(), counts["--listen"], folder).listen();
}

// Calls methods of a program that generates no text, one after the other.
class MethodListener {
 public:
  MethodListener(Module& module, unsigned idle_timeout_s)
      : module_(module), idle_timeout_s_(idle_timeout_s) {}

  void listen() {
    exit_when_idle(idle_timeout_s_);
    Lines lines;
    for (int64_t number = 1; ready() && lines.ready(true) && !lines.ended(); ++number) {
      alarm(idle_timeout_s_);
      Words words("line " + std::to_string(number) + " of the input", lines.next());
      words.require(words.word("a word") == "run", "run");
      const std::string method = words.word("the name of a method");
      const std::string inputs = words.word("the path of a list of inputs");
      run(method, inputs, words.rest("a folder for outputs"));
    }
  }

 private:
  // Says that the next line may come.
  static bool ready() {
    std::fputs("ready\n", answers());
    return std::fflush(answers()) == 0;
  }

  void run(const std::string& method, const std::string& list, const std::string& folder) {
    int64_t load_ns = 0;
    if (memory_.count(method) == 0) {
      load_ns = load_method(module_, method);
      memory_[method] = provide_outputs(module_, *module_.method_meta(method));
    }
    const Inputs inputs = read_inputs(list, *module_.method_meta(method));
    const int64_t started = now_ns();
    const auto outputs = module_.execute(method, inputs.values);
    const int64_t took_ns = now_ns() - started;
    require(outputs.error(), kInference, "method " + method + " failed");
    const std::string json = "{\"load_ms\": " + json_ms(load_ns) + ", \"run_ms\": " +
        json_ms(took_ns) + ", \"outputs\": " + write_outputs(*outputs, folder);
    write_results(folder + "/outputs.json", json);
  }

  Module& module_;
  const unsigned idle_timeout_s_;
  // Of outputs that the program has planned no memory for, by method.
  std::map<std::string, std::vector<Bytes>> memory_;
};

inline void listen_to_methods(Arguments& arguments) {
  auto& [listing, texts, counts, data, draft_data, given] = arguments;
  begin_results(texts["--program"], counts["--threads"], false);
  Module module(texts["--program"], data, Module::LoadMode::Mmap);
  load_program(module, texts["--program"]);
  MethodListener(module, counts["--listen"]).listen();
}
