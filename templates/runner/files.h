// Errors, and results as files: JSON text, and writing under a temporary name.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

// Exit codes; each comes with one line on stderr.
enum Exit { kArguments = 2, kProgram = 3, kInputs = 4, kInference = 5, kOutput = 6, kMemory = 7 };

struct Failure : std::runtime_error {
  Failure(Exit code, const std::string& message) : std::runtime_error(message), code(code) {}
  Exit code;
};

// Where tokens and answers go: the process's stdout. From the first call on, what libraries print
// to stdout goes to stderr, as Qualcomm's does when it is loaded.
inline FILE* answers() {
  static FILE* const stream = [] {
    const int own = dup(STDOUT_FILENO);
    FILE* const opened = own < 0 ? nullptr : fdopen(own, "w");
    return opened != nullptr && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0 ? opened : stdout;
  }();
  return stream;
}

inline std::string json_string(const std::string& text) {
  std::string quoted;
  for (const char c : text) {
    char escape[8] = {c, 0};
    if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\') {
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
    }
    quoted += escape;
  }
  return '"' + quoted + '"';
}

inline std::string json_ms(int64_t ns) {
  return std::to_string(static_cast<double>(ns) / 1e6); // six decimals: whole nanoseconds
}

template <typename Values, typename Format>
std::string json_list(const Values& values, Format format) {
  std::string text = "[";
  for (const auto& value : values) {
    text += (text.size() > 1 ? ", " : "") + format(value);
  }
  return text + "]";
}

inline std::string json_sizes(const std::vector<int64_t>& sizes) {
  return json_list(sizes, [](int64_t size) { return std::to_string(size); });
}

// The start of every JSON text of the runner.
const std::string kJsonHead = "{\n  \"schema_version\": 1,\n  \"executorch_version\": " +
    json_string(EXECUTORCH_VERSION);

inline void write_file(const std::string& path, const void* data, size_t size) {
  const std::string temporary = path + ".tmp";
  std::ofstream file(temporary, std::ios::binary);
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    std::remove(temporary.c_str());
    throw Failure(kOutput, "cannot write " + path + ": " + reason);
  }
}

// The JSON text of a run, without its end.
inline void write_results(const std::string& path, const std::string& json) {
  const std::string text = json + "\n}\n";
  write_file(path, text.data(), text.size());
}
