// Calls a program's methods on a sequence of tokens, whose keys and values they keep; what goes in
// and out is said in etdeploy/program/generation.py.
#pragma once

#include "../components.h"
#include "../loading.h"
#include "pages.h"
#include "request.h"
#include "snapshot.h"
#include "static_cache.h"

using executorch::extension::TensorPtr;
using executorch::runtime::EventTracer;
using executorch::runtime::MethodMeta;

// The most calls of a method that its trace has: a trace grows with each, and shares settle quickly.
constexpr int64_t kTracedCalls = 10;
// A prefill call is padded if at least this fraction of its tokens, one in so many, is left. In
// OpenVINO with 32-bit floats on two cores, a call of 128 tokens takes as long as 4 single tokens.
constexpr int64_t kLeastFilled = 16;

// Whether there are several, whose buffers have to share their memory.
inline bool share_memory(const std::vector<GenerationMethod>& methods) {
  return std::any_of(methods.begin(), methods.end(),
                     [&](const auto& method) { return method.name != methods[0].name; });
}

// How a program is loaded whose kernels read its weights: those of a mapped file stay in small pages.
inline Module::LoadMode load_mode(bool in_memory) {
  return in_memory && makes_huge_pages() ? Module::LoadMode::File : Module::LoadMode::Mmap;
}

// A tensor of a method, of one of these shapes, or of up to its sizes if they may change.
inline TensorInfo tensor_info(const MethodMeta& meta, const std::string& what, size_t index,
                              ScalarType type, const std::vector<Shape>& shapes) {
  const bool input = what == "input";
  const size_t count = input ? meta.num_inputs() : meta.num_outputs();
  const auto info = index >= count ? executorch::runtime::Result<TensorInfo>(Error::InvalidArgument)
      : input ? meta.input_tensor_meta(index) : meta.output_tensor_meta(index);
  const Shape sizes = info.ok() ? Shape(info->sizes().begin(), info->sizes().end()) : Shape();
  // The vocabulary of the first method is that of the others; here it is not known yet.
  const auto agrees = [](int64_t size, int64_t wanted) { return size == wanted || wanted == 0; };
  const auto fits = [&](const Shape& shape) {
    return std::equal(sizes.begin(), sizes.end(), shape.begin(), shape.end(), agrees);
  };
  if (!info.ok() || info->scalar_type() != type || std::none_of(shapes.begin(), shapes.end(), fits)) {
    std::string wanted;
    for (const Shape& shape : shapes) {
      wanted += (wanted.empty() ? "" : " or ") + json_sizes(shape);
    }
    throw Failure(kInputs, std::string("method ") + meta.name() + " needs, to generate, the " + what +
                  " " + std::to_string(index) + " " + type_name(type) + " " + wanted +
                  (info.ok() ? ", and has " + type_name(info->scalar_type()) + " " + json_sizes(sizes)
                             : ", and has no such tensor"));
  }
  return *info;
}

class Calls {
 public:
  // Traces of methods go to files that begin with `trace`; where it is empty, there are none. Each
  // has the last calls of its method, of the last text in which it was called.
  // saves: Whether the cache may be saved and restored.
  Calls(Module& module, const Request& request, const std::string& trace, bool saves = false)
      : module_(module), trace_(trace), table_(request.positions), rewind_(request.rewind) {
    if (request.static_cache) {
      static_.emplace(*request.static_cache);
    }
    if (request.encoder) {
      encode(*request.encoder, request.embedding.has_value());
    }
    if (request.embedding) {
      add_embedding(*request.embedding, request.methods);
    }
    if (saves && !static_) {
      plan_memory(request.methods);
    }
    for (const GenerationMethod& method : request.methods) {
      add(method, !static_ && share_memory(request.methods));
    }
    if (static_) {
      static_->bind(module_);
    }
    if (context_ == 0) {
      throw Failure(kInputs, "the request has no method that takes a single token");
    }
    huge_page_bytes_ = use_huge_pages();
  }

  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // Methods let go of memory before it is freed.
  ~Calls() {
    for (const Loaded& loaded : loaded_) {
      if (shared_bytes() != 0 || memory_) {
        module_.unload_method(loaded.name);
      }
    }
  }

  // Number of logits, and of positions that a sequence may have.
  size_t vocabulary() const { return static_cast<size_t>(vocabulary_); }
  int64_t context() const { return context_; }
  uint64_t huge_page_bytes() const { return huge_page_bytes_; }
  // How much of the inputs and outputs the HTP shares.
  size_t shared_bytes() const { return static_ ? static_->shared_bytes() : 0; }

  // From here on, calls belong to another text.
  void begin_text() { ++text_; }

  // Which calls are in the traces, by method.
  std::string json_traced() const {
    std::string text;
    for (const Loaded& loaded : loaded_) {
      if (loaded.tracer != nullptr && loaded.traced.calls != 0) {
        text += (text.empty() ? "" : ", ") + json_string(loaded.name) +
            ": {\"calls\": " + std::to_string(loaded.traced.calls) +
            ", \"tokens\": " + std::to_string(loaded.traced.tokens) +
            ", \"position\": " + std::to_string(loaded.traced.position) + "}";
      }
    }
    return "{" + text + "}";
  }

  // Whether what tokens at this position look back to is still there.
  bool reaches(int64_t position) const { return position == 0 || end_ - position <= rewind_; }

  // Saves the cache to a snapshot file, or restores it from one. `end` is the furthest position that
  // a call of the saved text reached.
  void save(const std::string& path) const { SnapshotFile(path).write(kept()); }
  void load(const std::string& path, int64_t end) {
    SnapshotFile(path).read(kept());
    end_ = end;
  }

  // Of each run of the encoder.
  std::string json_encode() const { return json_list(encode_ns_, json_ms); }

  // Times of loading, by method.
  std::string json() const {
    std::string text = json_list(loaded_, [](const Loaded& loaded) {
      return json_string(loaded.name) + ": " + json_ms(loaded.took_ns);
    });
    text.front() = '{';
    text.back() = '}';
    return text;
  }

  // Takes as many of the tokens as one call can; gives their number. A call that is filled up with
  // padding leaves the last of them to the next one: its logits are those after the padding.
  //
  // tokens: Of which the first is at `position`.
  // logits: Gets those of the last token that was taken; they stay until the next call.
  // later: How many tokens will be taken after these, one by one.
  int64_t take(const int64_t* tokens, int64_t count, int64_t position, const float*& logits,
               int64_t later = 0) {
    require_reach(position);
    const auto [method, taken] = choose(count, position);
    Loaded& loaded = loaded_[method->loaded];
    trace_call(loaded, method->facts, taken, position,
               method->facts.prefill ? count : count + later);
    if (static_) {
      take_static(*method, loaded.name, tokens, taken, position, logits);
      return taken;
    }
    // A method may give those of each token.
    logits = call(*method, tokens, taken, position, 1) - vocabulary_;
    return taken;
  }

  // The most tokens that one call takes from a position on and gives the logits of each; at most 1
  // where none does, or where the position could not be set back afterwards.
  int64_t verifies(int64_t position) const {
    const Method* const method = verifying(2, position);
    if (method == nullptr || rewind_ == 0) {
      return 1;
    }
    const GenerationMethod& facts = method->facts;
    const int64_t most = std::min(facts.verify_tokens, facts.capacity - position);
    return rewind_ < most ? rewind_ + 1 : most;
  }

  // Takes all of the tokens, which are at most as many as it verifies; gives the logits of each,
  // which stay until the next call.
  const float* verify(const int64_t* tokens, int64_t count, int64_t position) {
    require_reach(position);
    const Method& method = *verifying(count, position);
    trace_call(loaded_[method.loaded], method.facts, count, position, count);
    return call(method, tokens, count, position, count) - count * vocabulary_;
  }

  void write_traces() const {
    for (const Loaded& loaded : loaded_) {
      if (loaded.traced.calls != 0) {
        write_trace(loaded.tracer.get(), trace_ + "." + loaded.name);
      }
    }
  }

 private:
  // Calls of one text, one after the other.
  struct Traced {
    uint64_t text = 0;
    int64_t calls = 0, tokens = 0, position = 0;
  };
  struct Loaded {
    std::string name;
    int64_t took_ns;
    std::unique_ptr<EventTracer> tracer;
    std::vector<Bytes> outputs;
    Traced traced;
  };
  // `placeholders[i]`: how many tokens before position i are the placeholder.
  struct EmbeddingMethod {
    size_t loaded;
    int64_t placeholder, size;
    bool dynamic;
    TensorInfo input;
    std::vector<int64_t> placeholders{0};
  };
  struct Method {
    GenerationMethod facts;
    std::vector<TensorInfo> inputs;
    size_t loaded;
    // Whether its last input says which tokens' logits it gives.
    bool chooses_rows = false;
  };

  void require_reach(int64_t position) const {
    if (!reaches(position)) {
      throw Failure(kInputs, "the position cannot be set back from " + std::to_string(end_) + " to " +
                    std::to_string(position) + ": the program keeps " + std::to_string(rewind_) +
                    " tokens to go back over");
    }
  }

  void plan_memory(const std::vector<GenerationMethod>& methods) {
    std::vector<MethodMeta> metas;
    for (const GenerationMethod& method : methods) {
      const auto meta = module_.method_meta(method.name);
      require(meta.error(), kProgram, "the program has no method " + method.name);
      metas.push_back(*meta);
    }
    memory_.emplace(metas);
    shares_ = share_memory(methods);
  }

  std::vector<Block> kept() const { return static_ ? static_->kept() : memory_->kept(shares_); }

  // A method may have two roles; it is loaded once.
  // Calls a method with tokens, and gives the end of the logits: those of the last `rows` tokens at
  // least are there.
  const float* call(const Method& method, const int64_t* tokens, int64_t count, int64_t position,
                    int64_t rows) {
    const int64_t length = method.facts.dynamic ? count : method.facts.max_tokens;
    const TensorPtr first = embedding_
        ? embed(tokens, count, position, length, method.inputs[0])
        : tokens_tensor(tokens, count, length, method.inputs[0]);
    // Of the first token, or of each.
    const int64_t positions = method.inputs[1].sizes()[0] == 1 ? 1 : length;
    fill_ascending(position_, position, positions);
    std::vector<TensorPtr> inputs{first, make_tensor({positions}, position_, method.inputs[1])};
    if (table_) {
      inputs.push_back(columns(length, position, method.inputs[2]));
    }
    std::vector<EValue> values(inputs.begin(), inputs.end());
    values.insert(values.end(), encoded_.begin(), encoded_.end());
    TensorPtr chosen;
    if (method.chooses_rows) {
      fill_ascending(row_indexes_, count - rows, rows);
      chosen = make_tensor({rows}, row_indexes_, method.inputs.back());
      values.emplace_back(chosen);
    }
    const std::string& name = loaded_[method.loaded].name;
    const auto outputs = module_.execute(name, values);
    require(outputs.error(), kInference, "method " + name + " failed at position " +
            std::to_string(position));
    end_ = std::max(position == 0 ? 0 : end_, position + count);
    const auto& given = outputs->at(0).toTensor();
    return given.const_data_ptr<float>() + given.numel();
  }

  static void fill_ascending(Bytes& memory, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t number = first + i;
      std::memcpy(memory.data() + i * sizeof number, &number, sizeof number);
    }
  }

  // A method that may have two roles is loaded once.
  size_t load(const std::string& name, bool shared) {
    for (size_t i = 0; i < loaded_.size(); ++i) {
      if (loaded_[i].name == name) {
        return i;
      }
    }
    auto tracer = make_tracer(trace_);
    const int64_t took_ns = load_method(module_, name, tracer.get(),
                                        memory_ ? memory_->allocator() : nullptr);
    const MethodMeta meta = *module_.method_meta(name);
    // The second buffer is where ExecuTorch's memory planning puts what methods share.
    if (shared && meta.num_memory_planned_buffers() < 2) {
      throw Failure(kInputs, "method " + name + " shares no buffers with the others: the program is "
                    "exported without share_mutable_buffers");
    }
    loaded_.push_back({name, took_ns, std::move(tracer),
                       static_ ? std::vector<Bytes>() : provide_outputs(module_, meta), {}});
    return loaded_.size() - 1;
  }

  // Runs the encoder. Its outputs stay where they are until it runs again, unless they are `rows`:
  // methods that share memory would overwrite these.
  void encode(const Encoder& encoder, bool rows) {
    Loaded& loaded = loaded_[load(encoder.method, false)];
    const MethodMeta meta = *module_.method_meta(encoder.method);
    std::vector<Inputs> calls;
    for (const std::string& path : encoder.inputs) {
      calls.push_back(read_inputs(path, meta));
    }
    loaded.traced = {text_, static_cast<int64_t>(calls.size()), 1, 0};
    for (int64_t i = 0; i < encoder.repetitions; ++i) {
      restart_trace(loaded.tracer.get());
      encode_ns_.push_back(0);
      rows_.clear();
      for (const Inputs& inputs : calls) {
        const int64_t started = now_ns();
        auto outputs = module_.execute(encoder.method, inputs.values);
        require(outputs.error(), kInference, "method " + encoder.method + " failed");
        encode_ns_.back() += now_ns() - started;
        if (rows) {
          const Bytes given = contiguous_bytes(outputs->at(0).toTensor());
          rows_.insert(rows_.end(), given.begin(), given.end());
        } else {
          encoded_ = std::move(*outputs);
        }
      }
    }
  }

  void add_embedding(const Embedding& embedding, const std::vector<GenerationMethod>& methods) {
    const size_t loaded = load(embedding.method, false);
    const MethodMeta meta = *module_.method_meta(embedding.method);
    const auto most = std::max_element(methods.begin(), methods.end(), [](const auto& a, const auto& b) {
      return a.max_tokens < b.max_tokens;
    });
    const int64_t tokens = most == methods.end() ? 1 : most->max_tokens;
    const TensorInfo input = tensor_info(meta, "input", 0, ScalarType::Long, {{1, tokens}});
    const TensorInfo output =
        tensor_info(meta, "output", 0, ScalarType::Float, {{1, tokens, 0}});
    const bool dynamic = std::any_of(methods.begin(), methods.end(),
                                     [](const auto& method) { return method.dynamic; });
    embedding_ = EmbeddingMethod{loaded, embedding.placeholder, output.sizes()[2], dynamic, input};
    tokens_.resize(static_cast<size_t>(tokens) * sizeof(int64_t) + kPadding);
    embeddings_.resize(output.nbytes() + kPadding);
    const size_t row = static_cast<size_t>(embedding_->size) * sizeof(float);
    if (rows_.size() % row != 0) {
      throw Failure(kInputs, "the encoder gives " + std::to_string(rows_.size()) +
                    " bytes, which are no rows of " + std::to_string(row));
    }
  }

  // The tokens, and the first of them again until there are `length`.
  TensorPtr tokens_tensor(const int64_t* tokens, int64_t count, int64_t length,
                          const TensorInfo& info) {
    for (int64_t i = 0; i < length; ++i) {
      std::memcpy(tokens_.data() + i * sizeof *tokens, &tokens[i < count ? i : 0], sizeof *tokens);
    }
    return make_tensor({1, length}, tokens_, info);
  }

  // Embeddings of tokens, with those of the encoder in place of the placeholder's. Rows after them
  // keep what was there.
  TensorPtr embed(const int64_t* tokens, int64_t count, int64_t position, int64_t length,
                  const TensorInfo& info) {
    EmbeddingMethod& embedding = *embedding_;
    const int64_t taken = embedding.dynamic ? count : embedding.input.sizes()[1];
    Loaded& loaded = loaded_[embedding.loaded];
    restart_trace(loaded.tracer.get());
    loaded.traced = {text_, 1, count, position};
    const auto outputs = module_.execute(
        loaded.name, EValue(tokens_tensor(tokens, count, taken, embedding.input)));
    require(outputs.error(), kInference, "method " + loaded.name + " failed at position " +
            std::to_string(position));
    const size_t row = static_cast<size_t>(embedding.size) * sizeof(float);
    const void* given = outputs->at(0).toTensor().const_data_ptr();
    std::memcpy(embeddings_.data(), given, static_cast<size_t>(count) * row);
    auto& before = embedding.placeholders;
    before.resize(static_cast<size_t>(position) + 1, before.back());
    for (int64_t i = 0; i < count; ++i) {
      const auto index = static_cast<size_t>(before.back()) * row;
      const bool replaced = tokens[i] == embedding.placeholder && index < rows_.size();
      if (replaced) {
        std::memcpy(embeddings_.data() + static_cast<size_t>(i) * row, rows_.data() + index, row);
      }
      before.push_back(before.back() + (replaced ? 1 : 0));
    }
    return make_tensor({1, length, embedding.size}, embeddings_, info);
  }

  // The same with keys and values among inputs and outputs. Tokens are the last of the method's.
  void take_static(const Method& method, const std::string& name, const int64_t* tokens,
                   int64_t taken, int64_t position, const float*& logits) {
    const auto at = static_cast<size_t>(&method - methods_.data());
    const int64_t length = method.facts.max_tokens, padding = length - taken;
    std::vector<int64_t> ids(static_cast<size_t>(length), tokens[0]), places(ids.size(), 0);
    std::copy(tokens, tokens + taken, ids.begin() + padding);
    for (int64_t i = 0; i < length; ++i) {
      places[static_cast<size_t>(i)] = std::max<int64_t>(0, position + i - padding);
    }
    std::memcpy(static_->input(at, 0), ids.data(), ids.size() * sizeof(int64_t));
    std::memcpy(static_->input(at, 1), places.data(), places.size() * sizeof(int64_t));
    for (size_t i = 0; i < static_->masks(); ++i) {
      static_->write_mask(at, i, length, padding, position);
    }
    const auto outputs = module_.execute(name, static_->values(at));
    require(outputs.error(), kInference, "method " + name + " failed at position " +
            std::to_string(position));
    for (size_t i = 0; i < static_->size(); ++i) {
      static_->store(i, outputs->at(1 + i).toTensor().const_data_ptr(), length, taken, position);
    }
    end_ = std::max(position == 0 ? 0 : end_, position + taken);
    logits = outputs->at(0).toTensor().const_data_ptr<float>();
  }

  void add_static(Method& method, const MethodMeta& meta) {
    const int64_t length = method.facts.max_tokens, width = static_->places() + length;
    const auto type_of = [&](size_t index) { return meta.input_tensor_meta(index)->scalar_type(); };
    method.inputs = {tensor_info(meta, "input", 0, ScalarType::Long, {{1, length}}),
                     tensor_info(meta, "input", 1, ScalarType::Long, {{1, length}})};
    const size_t caches = StaticCacheTensors::kFirstMask + static_->masks();
    for (size_t i = StaticCacheTensors::kFirstMask; i < caches; ++i) {
      method.inputs.push_back(
          tensor_info(meta, "input", i, ScalarType::Float, {{1, 1, length, width}}));
    }
    if (meta.num_inputs() <= caches || (meta.num_inputs() - caches) % 2 != 0 ||
        meta.num_outputs() != meta.num_inputs() - caches + 1) {
      throw Failure(kInputs, "method " + method.facts.name + " takes " +
                    std::to_string(meta.num_inputs()) + " inputs and gives " +
                    std::to_string(meta.num_outputs()) + " outputs: to generate, it would take " +
                    std::to_string(caches) + " and keys and values of each layer, and give logits " +
                    "and keys and values");
    }
    std::vector<TensorInfo> outputs{*meta.output_tensor_meta(0)};
    for (size_t i = 0; caches + i < meta.num_inputs(); ++i) {
      const bool keys = i % 2 == 0;
      const int64_t places = static_->places();
      const auto type = type_of(caches + i);
      const auto info = tensor_info(meta, "input", caches + i, type,
                                    {keys ? Shape{1, 0, 0, places} : Shape{1, 0, places, 0}});
      const Shape sizes(info.sizes().begin(), info.sizes().end());
      Shape given = sizes;
      given[keys ? 3 : 2] = length;
      outputs.push_back(tensor_info(meta, "output", 1 + i, type, {given}));
      method.inputs.push_back(info);
    }
    static_->add(method.facts.name, method.inputs, outputs);
  }

  // The table's numbers for tokens from a position on.
  TensorPtr columns(int64_t count, int64_t position, const TensorInfo& info) {
    const auto length = static_cast<int64_t>(table_->numbers.size()) / table_->rows;
    for (int64_t row = 0; row < table_->rows; ++row) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t column = std::min(position + i, length - 1);
        const int64_t number = table_->numbers[static_cast<size_t>(row * length + column)] +
            (position + i - column);
        std::memcpy(columns_.data() + (row * count + i) * sizeof number, &number, sizeof number);
      }
    }
    return make_tensor({table_->rows, count}, columns_, info);
  }

  void add(const GenerationMethod& facts, bool shared) {
    Method method{facts, {}, load(facts.name, shared)};
    const MethodMeta meta = *module_.method_meta(facts.name);
    const size_t wanted = (table_ ? 3 : 2) + encoded_.size();
    method.chooses_rows = !static_ && facts.max_tokens > 1 && meta.num_inputs() == wanted + 1;
    if (!static_ && meta.num_inputs() != wanted + (method.chooses_rows ? 1 : 0)) {
      throw Failure(kInputs, "method " + facts.name + " takes " + std::to_string(meta.num_inputs()) +
                    " inputs, to generate it would take " + std::to_string(wanted));
    }
    const int64_t most = facts.max_tokens;
    if (static_) {
      add_static(method, meta);
    } else {
      method.inputs = {embedding_
              ? tensor_info(meta, "input", 0, ScalarType::Float, {{1, most, embedding_->size}})
              : tensor_info(meta, "input", 0, ScalarType::Long, {{1, most}}),
                       tensor_info(meta, "input", 1, ScalarType::Long, {{1}, {most}})};
    }
    if (table_) {
      method.inputs.push_back(
          tensor_info(meta, "input", 2, ScalarType::Long, {{table_->rows, most}}));
      columns_.resize(std::max(columns_.size(), static_cast<size_t>(table_->rows * most) *
          sizeof(int64_t) + kPadding));
    }
    int64_t given = most;
    if (method.chooses_rows) {
      const TensorInfo rows = tensor_info(meta, "input", wanted, ScalarType::Long, {{0}});
      given = rows.sizes()[0];
      method.inputs.push_back(rows);
      row_indexes_.resize(std::max(row_indexes_.size(), rows.nbytes() + kPadding));
    }
    const TensorInfo logits = tensor_info(meta, "output", 0, ScalarType::Float,
                                          {{1, vocabulary_}, {1, given, vocabulary_}});
    vocabulary_ = logits.sizes()[logits.sizes().size() - 1];
    if (facts.verify_tokens > given || (facts.verify_tokens != 0 && logits.sizes().size() < 3)) {
      throw Failure(kInputs, "method " + facts.name + " gives the logits of " +
                    (logits.sizes().size() < 3 ? "the last token" : std::to_string(given) +
                     " tokens") + ", and is to verify " + std::to_string(facts.verify_tokens));
    }
    for (Bytes* input : {&tokens_, &position_}) {
      input->resize(std::max(
          input->size(), static_cast<size_t>(most) * sizeof(int64_t) + kPadding));
    }
    context_ = std::max(context_, facts.dynamic || facts.max_tokens == 1 ? facts.capacity : 0);
    methods_.push_back(std::move(method));
  }

  // Begins the trace of a method anew for another text, and as long as enough calls of it follow.
  // left: Tokens that it may still take, those of this call among them.
  void trace_call(Loaded& loaded, const GenerationMethod& facts, int64_t taken, int64_t position,
                  int64_t left) {
    const int64_t own = std::min(left, facts.capacity - position);
    const int64_t calls = (own + facts.max_tokens - 1) / facts.max_tokens;
    if (loaded.traced.text != text_ || calls >= kTracedCalls) {
      restart_trace(loaded.tracer.get());
      loaded.traced = {text_, 0, 0, position};
    }
    loaded.traced.calls += 1;
    loaded.traced.tokens += taken;
  }

  // The call that takes the most tokens; of several, one for decoding, and the one with the least
  // capacity, which looks at the smallest part of the cache.
  std::pair<const Method*, int64_t> choose(int64_t count, int64_t position) const {
    const Method* best = nullptr;
    int64_t most = 0;
    const auto cost = [](const GenerationMethod& facts) {
      return std::make_pair(facts.prefill, facts.capacity);
    };
    for (const Method& method : methods_) {
      const GenerationMethod& facts = method.facts;
      const int64_t room = std::min({count, facts.max_tokens, facts.capacity - position});
      const bool whole = facts.dynamic || room == facts.max_tokens;
      const int64_t taken = whole ? room : padded(facts, count, position);
      if (taken > most || (best != nullptr && taken == most && cost(facts) < cost(best->facts))) {
        best = &method;
        most = taken;
      }
    }
    if (best == nullptr) {
      throw Failure(kInputs, "no method takes a token at position " + std::to_string(position));
    }
    return {best, most};
  }

  // Of tokens that do not fill a method of one length, how many it takes with padding after them;
  // 0 where single tokens are faster. What a call writes for the padding is overwritten before a
  // token looks at it; a cache that cannot be set back would lose what was there before.
  int64_t padded(const GenerationMethod& facts, int64_t count, int64_t position) const {
    const int64_t taken = count - 1;
    const bool fits = rewind_ == std::numeric_limits<int64_t>::max() &&
        facts.capacity - position >= facts.max_tokens;
    return fits && taken >= std::max<int64_t>(2, facts.max_tokens / kLeastFilled) ? taken : 0;
  }

  // The method that takes so many tokens and gives the logits of each; null where none does.
  const Method* verifying(int64_t count, int64_t position) const {
    const Method* best = nullptr;
    for (const Method& method : methods_) {
      const GenerationMethod& facts = method.facts;
      if (!static_ && facts.dynamic && facts.verify_tokens >= count &&
          facts.capacity - position >= count &&
          (best == nullptr || facts.capacity < best->facts.capacity)) {
        best = &method;
      }
    }
    return best;
  }

  Module& module_;
  // Where it is not the module's own.
  std::optional<PlannedMemory> memory_;
  bool shares_ = false;
  const std::string trace_;
  const std::optional<PositionTable> table_;
  std::vector<Loaded> loaded_;
  std::vector<Method> methods_;
  // What the encoder gave: inputs of the other methods, or rows among their embeddings.
  std::vector<EValue> encoded_;
  Bytes rows_;
  std::optional<EmbeddingMethod> embedding_;
  std::optional<StaticCacheTensors> static_;
  std::vector<int64_t> encode_ns_;
  // Memory of the inputs.
  Bytes tokens_, position_, embeddings_, columns_, row_indexes_;
  int64_t vocabulary_ = 0, context_ = 0;
  uint64_t text_ = 1, huge_page_bytes_ = 0;
  // The furthest end of a call since position 0.
  int64_t end_ = 0;
  const int64_t rewind_;
};
