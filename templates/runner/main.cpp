// Loads a program, runs one of its methods or generates text, and writes times, memory and outputs to
// files, or answers requests from stdin. The list of kernels goes to stdout, as do tokens that are
// streamed and answers, messages for people to stderr.

#include <unistd.h>

#include <system_error>

#include <executorch/runtime/platform/runtime.h>

#include "generation/listen.h"
#include "sustained.h"
#include "warmup.h"

// One inference as in an application: inputs are set each time, since the method may reuse their
// memory once it has read them.
static std::vector<EValue> infer(Module& module, const std::string& method, const Inputs& inputs,
                                 int64_t& elapsed_ns) {
  const int64_t started = now_ns();
  auto result = module.execute(method, inputs.values);
  elapsed_ns = now_ns() - started;
  require(result.error(), kInference, "method " + method + " failed");
  return std::move(*result);
}

// Inferences whose times are not kept; gives their number, and whether the times were steady, as
// JSON.
static std::string warm_up(Module& module, const std::string& method, const Inputs& inputs,
                           unsigned wanted) {
  const bool automatic = wanted == kUntilSteady;
  Warmup warmup;
  while (automatic ? !warmup.over() : warmup.inferences() < wanted) {
    int64_t elapsed_ns = 0;
    infer(module, method, inputs, elapsed_ns);
    warmup.add(elapsed_ns);
  }
  return ",\n  \"warmup\": " + std::to_string(warmup.inferences()) +
      ",\n  \"steady\": " + (!automatic ? "null" : warmup.steady() ? "true" : "false");
}

static void infer_all(Arguments& arguments) {
  auto& [listing, texts, counts, data, draft_data, given] = arguments;
  const std::string &method = texts["--method"], &folder = texts["--outputs"];
  std::ostringstream json;
  const int64_t began_ns = now_ns();
  std::optional<MemoryWatch> watch;
  if (counts["--watch-memory"] != 0) {
    watch.emplace();
  }
  json << begin_results(texts["--program"], counts["--threads"], !texts["--etdump"].empty())
       << ",\n  \"method\": " << json_string(method);
  Module module(texts["--program"], data, Module::LoadMode::Mmap, make_tracer(texts["--etdump"]));
  json << load_program(module, texts["--program"]);
  const int64_t load_method_ns = load_method(module, method);
  json << ",\n  \"load_method_ms\": " << json_ms(load_method_ns)
       << ",\n  \"rss_after_load_bytes\": " << peak_rss_bytes();
  if (watch) {
    watch->loaded();
  }
  const auto meta = *module.method_meta(method);
  const Inputs inputs = read_inputs(texts["--inputs"], meta);
  for (size_t i = 0; i < inputs.values.size(); ++i) {
    require(module.set_input(method, inputs.values[i], i), kInputs,
            "method " + method + " does not take input " + std::to_string(i));
  }
  const auto memory = provide_outputs(module, meta);
  int64_t first_ns = 0;
  const auto outputs = infer(module, method, inputs, first_ns);
  // These outputs are stored: a method with state gives others from now on.
  json << ",\n  \"first_inference_ms\": " << json_ms(first_ns)
       << ",\n  \"outputs\": " << (folder.empty() ? "[]" : write_outputs(outputs, folder))
       << ",\n  \"outputs_digest\": " << (counts["--digest"] ? json_digest(outputs) : "null");
  // Not right before the timed iterations, since reading it empties caches.
  const Processors before;
  json << warm_up(module, method, inputs, counts["--warmup"]);
  restart_trace(module.event_tracer()); // only the timed iterations are of interest
  std::vector<int64_t> samples_ns(counts["--iterations"]);
  for (int64_t& sample_ns : samples_ns) {
    infer(module, method, inputs, sample_ns);
  }
  std::string meanwhile = json_processors(before, Processors());
  json << ",\n  \"peak_rss_bytes\": " << peak_rss_bytes()
       << ",\n  \"samples_ms\": " << json_list(samples_ns, json_ms);
  if (watch) {
    json << watch->json(texts["--program"]);
  }
  if (const int64_t length_ns = counts["--sustained-ms"] * int64_t{1'000'000}; length_ns != 0) {
    json << work(length_ns, now_ns() - began_ns, [&] { infer(module, method, inputs, first_ns); },
                 [&](const std::string& so_far) {
                   meanwhile = json_processors(before, Processors());
                   write_results(texts["--results"], json.str() + so_far + meanwhile);
                 });
  }
  json << meanwhile;
  write_trace(module.event_tracer(), texts["--etdump"]);
  write_results(texts["--results"], json.str());
}

static int fail(Exit code, const char* message) {
  std::fprintf(stderr, "etdeploy-runner: error: %s\n", message);
  return code;
}

int main(int argc, char** argv) {
  // Also reached from code that was built without exceptions.
  std::set_new_handler([] { _exit(fail(kMemory, "out of memory")); });
  executorch::runtime::runtime_init();
  answers(); // before a backend loads a library
  try {
    Arguments arguments(argc, argv);
    if (arguments.list_kernels) {
      std::fputs(json_kernels().c_str(), answers());
    } else if (arguments.counts["--listen"] != 0) {
      arguments.given.count("--generation") ? listen(arguments) : listen_to_methods(arguments);
    } else {
      arguments.given.count("--generation") ? generate(arguments) : infer_all(arguments);
    }
    return 0;
  } catch (const Failure& failure) {
    return fail(failure.code, failure.what());
  } catch (const std::system_error& error) { // a folder that cannot be created
    return fail(kOutput, error.what());
  } catch (const std::exception& error) { // of a backend, such as Vulkan's
    return fail(kInference, error.what());
  }
}
