// The request of --generation; etdeploy/runner/generation.py describes its lines.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include "../files.h"

struct GenerationMethod {
  std::string name;
  bool prefill;
  // The most that a call takes, and whether it takes fewer, too.
  int64_t max_tokens;
  bool dynamic;
  // Where a call has to end at the latest.
  int64_t capacity;
  // The most tokens of a call whose logits it gives, if not only the last one's.
  int64_t verify_tokens = 0;
};

enum class Proposals { kNone, kLookup, kDraft };

struct Sampling {
  double temperature = 0;
  int64_t top_k = 0;
  double top_p = 1;
  uint64_t seed = 0;
  double min_p = 0;
  double repetition_penalty = 1;
};

struct Point {
  std::string name;
  int64_t depth, new_tokens, repetitions;
  std::vector<int64_t> prompt;
  // The text in the cache before the prompt, where it is another one than the prompt's tokens.
  std::vector<int64_t> before;
  // What is fed in place of the tokens that are chosen, all but the last, where it follows a text.
  std::vector<int64_t> followed;
  bool follows = false;
};

// The method whose outputs the others take after the position, or in place of embeddings.
struct Encoder {
  std::string method;
  // How often it runs: all times are in the results.
  int64_t repetitions;
  // Lists of its inputs, as --inputs names one: a call for each.
  std::vector<std::string> inputs;
};

// The method that gives the embeddings of tokens, which the others take in place of tokens. Those of
// `placeholder` are the encoder's rows, one after the other.
struct Embedding {
  std::string method;
  int64_t placeholder;
};

// What the methods take of each token after the position: `rows` numbers, for those of a prompt one
// row after the other in `numbers`, and one more for each further token.
struct PositionTable {
  int64_t rows;
  std::vector<int64_t> numbers;
};

// Keys and values as inputs and outputs of methods: how many earlier positions these have, what a
// mask has where a token does not see one, and for each mask how many it sees, 0 for all.
struct StaticCache {
  int64_t places;
  float masked;
  std::vector<int64_t> windows;
};

struct Request {
  std::vector<GenerationMethod> methods;
  std::optional<Encoder> encoder;
  std::optional<Embedding> embedding;
  std::optional<PositionTable> positions;
  std::optional<StaticCache> static_cache;
  // How far a position may be set back, unless to 0; without a limit if none is given.
  int64_t rewind = std::numeric_limits<int64_t>::max();
  // Whether the program is read into memory, and not mapped.
  bool in_memory = false;
  Sampling sampling;
  // What proposes tokens, of which a call verifies several.
  Proposals proposals = Proposals::kNone;
  // Of the program that drafts proposals: as those above of the other.
  std::vector<GenerationMethod> draft_methods;
  int64_t draft_rewind = std::numeric_limits<int64_t>::max();
  bool draft_in_memory = false;
  std::set<int64_t> stop_ids;
  // Tokens whose logits are in the results of points that follow a text.
  std::vector<int64_t> logit_ids;
  std::vector<Point> points;
};

// The words of a line. A missing or wrong word is an error with its place.
class Words {
 public:
  Words(const std::string& place, const std::string& text) : place_(place), line_(text) {}

  std::string word(const char* what) {
    std::string text;
    require(static_cast<bool>(line_ >> text), what);
    return text;
  }

  int64_t number(const char* what, int64_t least) {
    int64_t value = 0;
    require(line_ >> value && value >= least, what);
    return value;
  }

  double real(const char* what, double least, double most) {
    double value = 0;
    require(line_ >> value && value >= least && value <= most, what);
    return value;
  }

  // All that is left: a path may have spaces.
  std::string rest(const char* what) {
    std::string text;
    require(static_cast<bool>(std::getline(line_ >> std::ws, text)) && !text.empty(), what);
    return text;
  }

  bool more() { return static_cast<bool>(line_ >> std::ws) && !line_.eof(); }

  void require(bool given, const std::string& what) {
    if (!given) {
      throw Failure(kInputs, place_ + " expects " + what + ", the line is '" + line_.str() + "'");
    }
  }

 private:
  const std::string place_;
  std::istringstream line_;
};

inline GenerationMethod read_method(Words& words) {
  GenerationMethod method;
  method.name = words.word("the name of a method");
  const std::string role = words.word("a role");
  words.require(role == "prefill" || role == "decode", "the role prefill or decode");
  method.prefill = role == "prefill";
  method.max_tokens = words.number("max_tokens from 1 on", 1);
  words.require(method.prefill || method.max_tokens == 1, "max_tokens 1 of a decode method");
  const int64_t dynamic = words.number("dynamic as 0 or 1", 0);
  words.require(dynamic <= 1, "dynamic as 0 or 1");
  method.dynamic = dynamic == 1;
  method.capacity = words.number("a capacity from 1 on", 1);
  return method;
}

inline Sampling read_sampling(Words& words) {
  Sampling sampling;
  sampling.temperature =
      words.real("a temperature from 0 on", 0, std::numeric_limits<double>::max());
  sampling.top_k = words.number("top_k from 0 on", 0);
  sampling.top_p = words.real("top_p above 0 and up to 1", 0, 1);
  words.require(sampling.top_p > 0, "top_p above 0 and up to 1");
  sampling.seed = static_cast<uint64_t>(words.number("a seed from 0 on", 0));
  sampling.min_p = words.real("min_p from 0 to 1", 0, 1);
  sampling.repetition_penalty =
      words.real("a repetition penalty above 0", 0, std::numeric_limits<double>::max());
  words.require(sampling.repetition_penalty > 0, "a repetition penalty above 0");
  return sampling;
}

// Several lines are calls of one encoder.
inline void read_encoder(Words& words, const std::filesystem::path& folder,
                         std::optional<Encoder>& encoder) {
  const std::string method = words.word("the name of a method");
  const int64_t repetitions = words.number("repetitions from 1 on", 1);
  if (!encoder) {
    encoder = Encoder{method, repetitions, {}};
  }
  words.require(encoder->method == method && encoder->repetitions == repetitions,
                "the method and repetitions of the first encoder");
  encoder->inputs.push_back((folder / words.rest("the path of a list of inputs")).string());
}

inline Embedding read_embedding(Words& words) {
  Embedding embedding;
  embedding.method = words.word("the name of a method");
  embedding.placeholder = words.number("an id from 0 on", 0);
  return embedding;
}

inline std::vector<int64_t> read_tokens(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<int64_t> tokens(bytes.size() / sizeof(int64_t));
  if (!file || bytes.empty() || bytes.size() % sizeof(int64_t) != 0) {
    throw Failure(kInputs, "the prompt " + path + (!file ? " cannot be read"
        : bytes.empty() ? " has no token"
        : " has " + std::to_string(bytes.size()) + " bytes, ids have 8 each"));
  }
  std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return tokens;
}

inline PositionTable read_positions(Words& words, const std::filesystem::path& folder) {
  PositionTable table;
  table.rows = words.number("rows from 1 on", 1);
  table.numbers = read_tokens((folder / words.rest("the path of a table")).string());
  words.require(static_cast<int64_t>(table.numbers.size()) % table.rows == 0,
                "a table of that many rows");
  return table;
}

inline StaticCache read_static_cache(Words& words) {
  StaticCache cache;
  cache.places = words.number("places from 1 on", 1);
  cache.masked = static_cast<float>(words.real("a mask's number up to 0", -1e9, 0));
  do {
    cache.windows.push_back(words.number("a window from 0 on", 0));
  } while (words.more());
  return cache;
}

inline Point read_point(Words& words, const std::filesystem::path& folder) {
  Point point;
  point.name = words.word("the name of a point");
  point.depth = words.number("a depth from 0 on", 0);
  point.new_tokens = words.number("new tokens from 1 on", 1);
  point.repetitions = words.number("repetitions from 1 on", 1);
  point.prompt = read_tokens((folder / words.rest("the path of a prompt")).string());
  return point;
}

// The file has the prompt, and then the tokens that are fed instead of the new ones but the last.
inline Point read_followed(Words& words, const std::filesystem::path& folder) {
  Point point;
  point.name = words.word("the name of a point");
  point.depth = 0;
  point.new_tokens = words.number("new tokens from 1 on", 1);
  point.repetitions = 1;
  point.prompt = read_tokens((folder / words.rest("the path of a text")).string());
  const auto length = static_cast<int64_t>(point.prompt.size());
  words.require(point.new_tokens <= length,
                "a text of at least as many tokens, and not of " + std::to_string(length));
  const auto end = point.prompt.end() - static_cast<std::ptrdiff_t>(point.new_tokens - 1);
  point.follows = true;
  point.followed.assign(end, point.prompt.end());
  point.prompt.erase(end, point.prompt.end());
  return point;
}

inline void read_verify(Words& words, std::vector<GenerationMethod>& methods) {
  const std::string name = words.word("the name of a method");
  const int64_t tokens = words.number("tokens from 2 on", 2);
  const auto named = [&](const auto& method) { return method.name == name; };
  const auto method = std::find_if(methods.begin(), methods.end(), named);
  words.require(method != methods.end(), "a method of a line before");
  method->verify_tokens = tokens;
}

inline bool read_load_mode(Words& words) {
  const std::string mode = words.word("a mode");
  words.require(mode == "mmap" || mode == "file", "the mode mmap or file");
  return mode == "file";
}

inline void read_ids(Words& words, const std::function<void(int64_t)>& take) {
  while (words.more()) {
    take(words.number("ids from 0 on", 0));
  }
}

inline void read_line(Words& words, const std::filesystem::path& folder, Request& request) {
  const std::string kind = words.word("a word");
  if (kind == "method") {
    request.methods.push_back(read_method(words));
  } else if (kind == "encoder") {
    read_encoder(words, folder, request.encoder);
  } else if (kind == "embedding") {
    request.embedding = read_embedding(words);
  } else if (kind == "positions") {
    request.positions = read_positions(words, folder);
  } else if (kind == "static") {
    request.static_cache = read_static_cache(words);
  } else if (kind == "rewind") {
    request.rewind = words.number("a number of tokens from 0 on", 0);
  } else if (kind == "load_mode") {
    request.in_memory = read_load_mode(words);
  } else if (kind == "verify") {
    read_verify(words, request.methods);
  } else if (kind == "speculation") {
    const std::string named = words.word("a kind of proposals");
    words.require(named == "lookup" || named == "draft", "lookup or draft");
    request.proposals = named == "draft" ? Proposals::kDraft : Proposals::kLookup;
  } else if (kind == "draft") {
    request.draft_methods.push_back(read_method(words));
  } else if (kind == "draft_rewind") {
    request.draft_rewind = words.number("a number of tokens from 0 on", 0);
  } else if (kind == "draft_load_mode") {
    request.draft_in_memory = read_load_mode(words);
  } else if (kind == "sampling") {
    request.sampling = read_sampling(words);
  } else if (kind == "point") {
    request.points.push_back(read_point(words, folder));
  } else if (kind == "follow") {
    request.points.push_back(read_followed(words, folder));
  } else if (kind == "logits") {
    read_ids(words, [&](int64_t id) { request.logit_ids.push_back(id); });
  } else {
    words.require(kind == "stop", "method, encoder, embedding, positions, static, rewind, verify, "
                  "speculation, load_mode, draft, draft_rewind, draft_load_mode, sampling, stop, "
                  "logits, follow or point");
    read_ids(words, [&](int64_t id) { request.stop_ids.insert(id); });
  }
  words.require(!words.more(), "nothing more");
}

// Where the runner listens, requests come later, and there is no point yet.
inline Request read_request(const std::string& path, bool listens = false) {
  Request request;
  std::ifstream file(path);
  if (!file) {
    throw Failure(kInputs, "cannot read the request " + path);
  }
  size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    Words words(path + ":" + std::to_string(++number), line);
    read_line(words, std::filesystem::path(path).parent_path(), request);
  }
  if (request.methods.empty() || request.points.empty() != listens) {
    throw Failure(kInputs, "the request " + path + " has " +
                  (request.methods.empty() ? "no method" : listens ? "a point" : "no point"));
  }
  if (request.draft_methods.empty() == (request.proposals == Proposals::kDraft)) {
    throw Failure(kInputs, "the request " + path + (request.draft_methods.empty()
        ? " has no method of the draft" : " has methods of a draft that proposes nothing"));
  }
  return request;
}
