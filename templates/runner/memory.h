// What this process needs of the main memory: now, at most, and over time.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach/mach.h>
#else
#include <sys/sysmacros.h>
#endif

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "files.h"

constexpr int64_t kNotReported = -1;

inline int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

inline std::string json_s(int64_t ns) {
  return std::to_string(static_cast<double>(ns) / 1e9);
}

inline std::string json_known(int64_t value) {
  return value == kNotReported ? "null" : std::to_string(value);
}

// The peak resident memory of this process so far, in bytes; 0 if unknown.
inline int64_t peak_rss_bytes() {
#ifdef __APPLE__
  rusage usage{};
  return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_maxrss : 0;
#else
  // Not ru_maxrss: Linux carries it over exec, so that a large parent would be measured.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) {
      return std::stoll(line.substr(6)) * 1024;
    }
  }
  return 0;
#endif
}

// In bytes; kNotReported for what the system does not report. Anonymous memory belongs to no file: heap,
// stacks, what a delegate copied. The footprint is Apple's, with compressed memory.
struct MemoryState {
  int64_t rss = kNotReported, pss = kNotReported, anonymous = kNotReported, peak_footprint = kNotReported;
};

#ifdef __APPLE__
inline MemoryState memory_now() {
  MemoryState state;
  task_vm_info_data_t info{};
  mach_msg_type_number_t count = TASK_VM_INFO_COUNT;
  if (task_info(mach_task_self(), TASK_VM_INFO, reinterpret_cast<task_info_t>(&info), &count) ==
      KERN_SUCCESS) {
    state.rss = static_cast<int64_t>(info.resident_size);
    state.anonymous = static_cast<int64_t>(info.internal);
    state.peak_footprint = std::max(static_cast<int64_t>(info.phys_footprint),
                                    static_cast<int64_t>(info.ledger_phys_footprint_peak));
  }
  return state;
}
#else
// A small file of /proc as text. Nothing is allocated: that would be measured.
inline bool read_proc(const char* path, std::array<char, 4096>& text) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return false;
  }
  size_t size = 0;
  for (ssize_t got = 1; got > 0 && size < text.size() - 1; size += std::max<ssize_t>(got, 0)) {
    got = read(file, text.data() + size, text.size() - 1 - size);
  }
  close(file);
  text[size] = 0;
  return size > 0;
}

inline int64_t proc_bytes(const char* text, const char* name) {
  const char* found = std::strstr(text, name);
  return found == nullptr ? kNotReported : std::atoll(found + std::strlen(name)) * 1024;
}

inline MemoryState memory_now() {
  MemoryState state;
  std::array<char, 4096> text;
  if (read_proc("/proc/self/smaps_rollup", text)) { // since Linux 4.14
    state.rss = proc_bytes(text.data(), "\nRss:");
    state.pss = proc_bytes(text.data(), "\nPss:");
    state.anonymous = proc_bytes(text.data(), "\nAnonymous:");
  } else if (long long size = 0, resident = 0, shared = 0; read_proc("/proc/self/statm", text) &&
             std::sscanf(text.data(), "%lld %lld %lld", &size, &resident, &shared) == 3) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    state.rss = resident * page;
    state.anonymous = (resident - shared) * page;
  }
  return state;
}
#endif

// Resident bytes of a file that is mapped, kNotReported where the system does not say.
inline int64_t resident_of_file(const std::string& path) {
#ifndef __APPLE__
  struct stat file {};
  char* whole = realpath(path.c_str(), nullptr);
  const std::string real = whole != nullptr ? whole : "";
  std::free(whole);
  std::ifstream maps("/proc/self/smaps");
  if (real.empty() || stat(path.c_str(), &file) != 0 || !maps) {
    return kNotReported;
  }
  int64_t sum = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned device_major = 0, device_minor = 0;
    unsigned long long inode = 0;
    int at = 0;
    if (std::sscanf(line.c_str(), "%*x-%*x %*s %*x %x:%x %llu %n", &device_major, &device_minor,
                    &inode, &at) == 3) {
      // By number and by name: an overlay has other numbers here, and a path may be a link.
      inside = (inode == file.st_ino && device_major == major(file.st_dev) &&
                device_minor == minor(file.st_dev)) ||
          line.substr(at) == real;
    } else if (inside && line.rfind("Rss:", 0) == 0) {
      sum += std::stoll(line.substr(4)) * 1024;
    }
  }
  return sum;
#else
  (void)path;
  return kNotReported;
#endif
}

// Reads the memory in a thread. The period is 10 ms at first, and doubles whenever there are 256
// points, of which the higher one of each two stays.
class MemoryWatch {
 public:
  MemoryWatch() : began_ns_(now_ns()) {
    points_.reserve(kMost);
    before_load_ = read_now();
    thread_ = std::thread([this] { watch(); });
  }
  ~MemoryWatch() { stop(); }
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  void loaded() { after_load_ = read_now(); }

  // Ends the watch, and returns all readings and the resident size of the program's file as JSON.
  std::string json(const std::string& program) {
    read_now();
    stop();
    return ",\n  \"memory\": {\"before_load\": " + json_state(before_load_) +
        ", \"after_load\": " + json_state(after_load_) +
        ", \"peak_pss_bytes\": " + json_known(peak_.pss) +
        ", \"peak_footprint_bytes\": " + json_known(peak_.peak_footprint) +
        ", \"program_resident_bytes\": " + json_known(resident_of_file(program)) +
        ",\n    \"points\": " + json_list(points_, [](const Point& point) {
          return "[" + json_s(point.ns) + ", " + json_known(point.rss) + ", " +
              json_known(point.pss) + "]";
        }) + "}";
  }

 private:
  struct Point {
    int64_t ns, rss, pss;
  };
  static constexpr size_t kMost = 256;
  // Reading walks the page tables, with a lock that page faults wait for: a tenth of the time is
  // the most that it may take.
  static constexpr int64_t kRest = 10;

  static std::string json_state(const MemoryState& state) {
    return "{\"rss_bytes\": " + json_known(state.rss) + ", \"pss_bytes\": " + json_known(state.pss) +
        ", \"anonymous_bytes\": " + json_known(state.anonymous) + "}";
  }

  MemoryState read_now() {
    const MemoryState state = memory_now();
    const std::lock_guard<std::mutex> lock(mutex_);
    peak_.pss = std::max(peak_.pss, state.pss);
    peak_.peak_footprint = std::max(peak_.peak_footprint, state.peak_footprint);
    if (state.rss != kNotReported) {
      if (points_.size() == kMost) {
        halve();
      }
      points_.push_back({now_ns() - began_ns_, state.rss, state.pss});
    }
    return state;
  }

  void halve() {
    for (size_t i = 0; i < kMost / 2; ++i) {
      const Point &first = points_[2 * i], &second = points_[2 * i + 1];
      points_[i] = first.rss > second.rss ? first : second;
    }
    points_.resize(kMost / 2);
    period_ns_ *= 2;
  }

  void watch() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (int64_t took_ns = 0; !stopping_;) {
      wake_.wait_for(lock, std::chrono::nanoseconds(std::max(period_ns_, kRest * took_ns)));
      if (!stopping_) {
        lock.unlock();
        const int64_t started = now_ns();
        read_now();
        took_ns = now_ns() - started;
        lock.lock();
      }
    }
  }

  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  const int64_t began_ns_;
  int64_t period_ns_ = 10'000'000;
  MemoryState before_load_, after_load_, peak_;
  std::vector<Point> points_;
  bool stopping_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;
};
