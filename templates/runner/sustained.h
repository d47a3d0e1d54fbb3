// Back-to-back work for a given time, and its rate over that time.
#pragma once

#include "memory.h"

// A part of the time: it ends with an inference, and `inferences` of them ended in it.
struct Stretch {
  int64_t end_ns;
  uint64_t inferences;
};

// Stretches are a hundredth of the time each, and at least a second: shorter ones would show the
// scheduler. Where the time is short, twenty of them are made of it.
inline int64_t stretch_ns(int64_t length_ns) {
  constexpr int64_t second = 1'000'000'000;
  return std::max<int64_t>({length_ns / 100, std::min(second, length_ns / 20), 1});
}

// Runs `infer` until the time is over, at least once, and calls `tell` with the stretches so far
// whenever one ends. Their number is bounded by the time, not by the number of inferences.
template <typename Infer, typename Tell>
std::vector<Stretch> sustain(int64_t length_ns, Infer infer, Tell tell) {
  const int64_t each_ns = stretch_ns(length_ns), began_ns = now_ns();
  std::vector<Stretch> stretches;
  stretches.reserve(static_cast<size_t>(length_ns / each_ns) + 1);
  uint64_t inferences = 0;
  for (int64_t passed_ns = 0, until_ns = each_ns; passed_ns < length_ns;) {
    infer();
    ++inferences;
    passed_ns = now_ns() - began_ns;
    if (passed_ns >= until_ns || passed_ns >= length_ns) {
      stretches.push_back({passed_ns, inferences});
      inferences = 0;
      until_ns = (passed_ns / each_ns + 1) * each_ns; // one inference may be longer than a stretch
      tell(stretches);
    }
  }
  return stretches;
}

// The work as JSON. `keep` gets that, too, whenever a stretch ends: a runner that the system ends on
// the way leaves what it did until then.
template <typename Infer, typename Keep>
std::string work(int64_t length_ns, int64_t since_start_ns, Infer infer, Keep keep) {
  const auto json = [&](const std::vector<Stretch>& stretches) {
    return ",\n  \"sustained\": {\"began_s\": " + json_s(since_start_ns) +
        ", \"stretches\": " + json_list(stretches, [](const Stretch& stretch) {
          return "[" + json_s(stretch.end_ns) + ", " + std::to_string(stretch.inferences) + "]";
        }) + "}";
  };
  return json(sustain(length_ns, infer, [&](const auto& so_far) {
    try {
      keep(json(so_far));
    } catch (const Failure&) { // a full disk, which the end tells if it is still full
    }
  }));
}
