// The command line.
#pragma once

#include <map>
#include <set>

#include "files.h"

// What `--warmup auto` stands for; no number that is given is as large.
constexpr unsigned kUntilSteady = 100'000'000;

inline unsigned parse_count(const std::string& option, const std::string& text) {
  if (option == "--warmup" && text == "auto") {
    return kUntilSteady;
  }
  if (text.empty() || text.size() > 8 || text.find_first_not_of("0123456789") != text.npos) {
    throw Failure(kArguments, option + " takes a whole number below 10^8, not '" + text + "'");
  }
  return static_cast<unsigned>(std::stoul(text));
}

struct Arguments {
  bool list_kernels = false;
  std::map<std::string, std::string> texts{{"--program", ""}, {"--method", "forward"},
      {"--inputs", ""}, {"--results", "results.json"}, {"--outputs", ""}, {"--etdump", ""},
      {"--generation", ""}, {"--draft", ""}};
  // The first inference stands alone; warm-up comes between it and the timed iterations, as many
  // or, with `auto`, until the times are steady.
  // --threads 0 leaves ExecuTorch's choice; --listen 0 does not listen.
  std::map<std::string, unsigned> counts{{"--warmup", 5}, {"--iterations", 50}, {"--threads", 0},
      {"--watch-memory", 0}, {"--sustained-ms", 0}, {"--digest", 0}, {"--stream", 0},
      {"--listen", 0}};
  // Files with weights that the program names, and those that the draft does.
  std::vector<std::string> data, draft_data;
  std::set<std::string> given;

  Arguments(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string option = argv[i];
      if (option == "--list-kernels") {
        list_kernels = true;
      } else if (texts.count(option) + counts.count(option) == 0 && option != "--data" &&
                 option != "--draft-data") {
        throw Failure(kArguments, "unknown option '" + option + "'");
      } else if (++i == argc) {
        throw Failure(kArguments, option + " needs a value");
      } else if (option == "--data") {
        data.push_back(argv[i]);
      } else if (option == "--draft-data") {
        draft_data.push_back(argv[i]);
      } else if (texts.count(option) != 0) {
        texts[option] = argv[i];
      } else {
        counts[option] = parse_count(option, argv[i]);
      }
      given.insert(option);
    }
    check_workload();
    if (!list_kernels && (texts["--program"].empty() || counts["--iterations"] == 0)) {
      throw Failure(kArguments, "--program and at least one iteration are needed");
    }
  }

 private:
  // Options of the workload that does not run would do nothing.
  void check_workload() const {
    const std::set<std::string> inferences{"--method", "--inputs", "--outputs", "--warmup",
        "--iterations", "--sustained-ms", "--digest"};
    if (given.count("--generation") != 0) {
      refuse(inferences, " does not go with --generation");
      return;
    }
    refuse({"--stream", "--draft", "--draft-data"}, " needs --generation");
    if (given.count("--listen") != 0) {
      refuse(inferences, " does not go with --listen");
    }
  }

  void refuse(const std::set<std::string>& options, const char* why) const {
    for (const std::string& option : options) {
      if (given.count(option) != 0) {
        throw Failure(kArguments, option + why);
      }
    }
  }
};
