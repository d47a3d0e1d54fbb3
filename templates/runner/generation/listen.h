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
  Listener(const Request& request, Calls& calls, unsigned idle_timeout_s)
      : request_(request), calls_(calls), idle_timeout_s_(idle_timeout_s) {}

  // Answers lines until the input ends.
  void listen() {
    exit_when_idle(idle_timeout_s_);
    std::fputs("ready\n", answers());
    std::fflush(answers());
    while (lines_.ready(true) && !lines_.ended()) {
      alarm(idle_timeout_s_);
      const std::string line = lines_.next();
      if (line != kStop) { // for an answer that had ended before
        answer(line);
      }
    }
  }

 private:
  static constexpr const char* kStop = "stop";

  void answer(const std::string& line) {
    Words words("line " + std::to_string(++number_) + " of the input", line);
    words.require(words.word("a word") == "answer", "answer or stop");
    Request asked = request_;
    Point point{"of line " + std::to_string(number_), words.number("a position from 0 on", 0),
                words.number("new tokens from 1 on", 1), 1, {}, {}, {}};
    asked.sampling = read_sampling(words);
    while (words.more()) {
      point.prompt.push_back(words.number("ids from 0 on", 0));
    }
    words.require(!point.prompt.empty(), "ids");
    const auto filled = static_cast<int64_t>(cache_.size());
    words.require(point.depth <= filled, "a position up to " + std::to_string(filled));
    check_point(point, calls_);
    cache_.resize(static_cast<size_t>(point.depth));
    point.before = cache_;
    const Text text =
        Generator(asked, calls_, [&](const Text& so_far) { return tell(so_far); }).generate(point);
    const auto taken = point.prompt.begin() + static_cast<std::ptrdiff_t>(text.taken);
    cache_.insert(cache_.end(), point.prompt.begin(), taken);
    if (!text.tokens.empty()) { // the last one is not fed back
      cache_.insert(cache_.end(), text.tokens.begin(), text.tokens.end() - 1);
    }
    tell_end(text);
  }

  // Prints the progress of a text; returns false if it is to stop.
  bool tell(const Text& text) {
    alarm(idle_timeout_s_);
    if (text.tokens.empty()) {
      std::fprintf(answers(), "taken %zu\n", text.taken);
    } else {
      const int64_t ns = text.token_ns.empty() ? text.first_token_ns : text.token_ns.back();
      std::fprintf(answers(), "token %lld %lld\n", static_cast<long long>(text.tokens.back()),
                   static_cast<long long>(ns));
    }
    std::fflush(answers());
    ended_ = lines_.ready(false) && (lines_.ended() || lines_.front() == kStop);
    return !ended_;
  }

  void tell_end(const Text& text) {
    std::fprintf(answers(), "end %s\n", text.stopped ? "stop_token" : ended_ ? "stop" : "new_tokens");
    std::fflush(answers());
  }

  const Request& request_;
  Calls& calls_;
  const unsigned idle_timeout_s_;
  Lines lines_;
  // Tokens in the cache.
  std::vector<int64_t> cache_;
  // Lines that were answered.
  int64_t number_ = 0;
  bool ended_ = false;
};

inline void listen(Arguments& arguments) {
  auto& [listing, texts, counts, data, given] = arguments;
  for (const char* option : {"--stream", "--watch-memory", "--etdump"}) {
    if (given.count(option) != 0) {
      throw Failure(kArguments, std::string(option) + " does not go with --listen");
    }
  }
  const Request request = read_request(texts["--generation"], true);
  begin_results(texts["--program"], counts["--threads"], false);
  allocate_together();
  const bool several = share_memory(request.methods);
  if (several) {
    share_packed_weights();
  }
  Module module(texts["--program"], data, Module::LoadMode::Mmap, nullptr, nullptr, nullptr, several);
  load_program(module, texts["--program"]);
  Calls calls(module, request, "");
  Listener(request, calls, counts["--listen"]).listen();
}
