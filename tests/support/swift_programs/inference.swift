// Runs the app's measuring code with a model that doubles its input: MODEL DOCUMENTS MANNER WORD...

import Foundation

final class Doubling: Model {
  let input: Data
  let manner: String
  var results: [Float] = []
  var calls = 0

  init(_ input: Data, _ manner: String) {
    self.input = input
    self.manner = manner
  }

  func loadProgram() throws {
    if manner == "load" { throw Failure(.load, "no backend") }
  }
  func loadMethod() {}
  func infer() throws {
    if manner == "run" { throw Failure(.run, "the method failed") }
    results = input.withUnsafeBytes { $0.bindMemory(to: Float.self).map { $0 * 2 } }
    if manner == "slow" { usleep(2000) }
    calls += 1
    if manner == "leave \(calls)" { withUnsafeCurrentTask { $0?.cancel() } }
  }
  func outputs() -> [Output] {
    let bytes = results.withUnsafeBytes { Data($0) }
    return [
      Output(kind: "Tensor", dtype: "float32", shape: [results.count], bytes: bytes),
      Output(kind: "Int", value: 3),
      Output(kind: "Double", value: .infinity),
    ]
  }
}

let words = CommandLine.arguments
let folders = Folders(
  model: URL(filePath: words[1], directoryHint: .isDirectory),
  documents: URL(filePath: words[2], directoryHint: .isDirectory))
let given = Array(words[4...])
// The app cancels its task when it leaves the front.
let report = await Task.detached {
  return Report(runId: Options.runId(given) ?? "", in: folders.documents) {
    let options = try Options(given)
    let benchmark = try Benchmark(options, in: folders)
    _ = try folders.program(benchmark.payload, options)
    let input = try Data(contentsOf: folders.model.appending(path: benchmark.size.inputs[0].path!))
    let (found, verdicts) = try benchmark.run(Doubling(input, words[3])) { print("progress \($0)") }
    for verdict in verdicts {
      print("verdict \(verdict.name) \(verdict.isRight) \(verdict.difference ?? -1)")
    }
    return found
  }
}.value
print("ended \(report.status) \(report.error?.message ?? "")")
