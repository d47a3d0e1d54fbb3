// What the processors did meanwhile: for this process, for others, and not at all.
#pragma once

#ifdef __linux__
#include <sched.h>
#endif
#include <sys/resource.h>

#include <ctime>

#include "memory.h"

constexpr int64_t kSecond = 1'000'000'000;

inline int64_t clock_ns(clockid_t clock) {
  timespec time{};
  return clock_gettime(clock, &time) == 0 ? time.tv_sec * kSecond + time.tv_nsec : kNotReported;
}

// Counters in nanoseconds, read at the beginning and the end of a measurement.
// Those of the whole machine are only about the processors that this process may use; Linux counts
// them in hundredths of a second.
struct Processors {
  int64_t wall_ns = now_ns();
  // By the clock that people set.
  int64_t date_ns = clock_ns(CLOCK_REALTIME);
  // Of all threads of this process.
  int64_t own_ns = 0;
  // How long the thread that infers was ready to run, while something else had the processor.
  int64_t waited_ns = kNotReported;
  int64_t busy_ns = kNotReported;
  // Taken by other guests of the machine that this one is a guest of.
  int64_t stolen_ns = kNotReported;
  int count = 0;

  Processors() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    for (const timeval& time : {usage.ru_utime, usage.ru_stime}) {
      own_ns += time.tv_sec * kSecond + time.tv_usec * int64_t{1000};
    }
#ifdef __linux__
    int64_t ran_ns = 0;
    // Of the first thread.
    if (std::ifstream file("/proc/self/schedstat"); !(file >> ran_ns >> waited_ns)) {
      waited_ns = kNotReported;
    }
    read_machine();
#endif
  }

#ifdef __linux__
  void read_machine() {
    cpu_set_t usable;
    if (sched_getaffinity(0, sizeof usable, &usable) != 0) {
      return; // more processors than the set has room for
    }
    const int64_t tick_ns = kSecond / sysconf(_SC_CLK_TCK);
    std::ifstream file("/proc/stat");
    int64_t busy = 0, stolen = 0;
    for (std::string line; std::getline(file, line);) {
      int cpu = 0;
      long long user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, soft = 0, steal = 0;
      // Interrupts are left out: an accelerator's are this process's own work.
      if (std::sscanf(line.c_str(), "cpu%d %lld %lld %lld %lld %lld %lld %lld %lld", &cpu, &user,
                      &nice, &system, &idle, &waiting, &irq, &soft, &steal) == 9 &&
          cpu < CPU_SETSIZE && CPU_ISSET(cpu, &usable)) {
        busy += (user + nice + system) * tick_ns;
        stolen += steal * tick_ns;
        ++count;
      }
    }
    if (count != 0) {
      busy_ns = busy;
      stolen_ns = stolen;
    }
  }
#endif
};

inline std::string json_between(int64_t before_ns, int64_t after_ns) {
  const bool known = before_ns != kNotReported && after_ns != kNotReported;
  return known ? json_s(after_ns - before_ns) : "null";
}

// What happened between two moments, as a member of the results.
inline std::string json_processors(const Processors& before, const Processors& after) {
  const int64_t wall_ns = after.wall_ns - before.wall_ns;
  return ",\n  \"processors\": {\"count\": " + std::to_string(after.count) +
      ", \"wall_s\": " + json_s(wall_ns) +
      ", \"own_s\": " + json_between(before.own_ns, after.own_ns) +
      ", \"waited_s\": " + json_between(before.waited_ns, after.waited_ns) +
      ", \"busy_s\": " + json_between(before.busy_ns, after.busy_ns) +
      ", \"stolen_s\": " + json_between(before.stolen_ns, after.stolen_ns) +
      ", \"clock_step_s\": " + json_between(before.date_ns + wall_ns, after.date_ns) + "}";
}
