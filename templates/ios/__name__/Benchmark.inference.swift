// Measures a model: load, first inference, warm-up, timed inferences. Foundation only.

import Foundation

/// Runs one method of a program. `ExecuTorchModel` is the real one.
protocol Model {
  func loadProgram() throws
  func loadMethod() throws
  /// Sets the inputs and executes, as an app does for each new input.
  func infer() throws
  /// What the last inference gave.
  func outputs() throws -> [Output]
}

/// An output; a tensor's bytes are contiguous, and in results.json in a file of their own.
struct Output: Encodable, Sendable {
  let kind: String
  var dtype, path: String?
  var shape: [Int]?
  var value: Double?
  var bytes = Data()

  private enum CodingKeys: String, CodingKey { case kind, dtype, path, shape, value }

  /// The elements of a tensor of 32-bit floats; nil for anything else.
  var floats: [Float]? {
    guard kind == "Tensor", dtype == "float32" else { return nil }
    return bytes.withUnsafeBytes { raw in
      (0..<raw.count / 4).map { raw.loadUnaligned(fromByteOffset: 4 * $0, as: Float.self) }
    }
  }
}

/// Until the times have stopped falling, which caches and the processor's frequency make them do.
///
/// Inferences form blocks of 50 ms, or of one that takes longer. A block whose median is 2 % below
/// the lowest before sets a new mark; two in a row that do not end the warm-up.
struct Warmup {
  private(set) var inferences = 0
  private var block: [Double] = []
  private var blockMs = 0.0
  private var totalMs = 0.0
  private var fastestMs = Double.infinity
  private var quiet = 0

  var isSteady: Bool { quiet == 2 }
  var isOver: Bool {
    isSteady || inferences >= 1_000_000 || (totalMs >= 10_000 && inferences >= 3)
  }

  mutating func add(_ ms: Double) {
    inferences += 1
    totalMs += ms
    blockMs += ms
    block.append(ms)
    guard blockMs >= 50 else { return }
    let median = block.sorted()[block.count / 2]
    quiet = median < 0.98 * fastestMs ? 0 : quiet + 1
    fastestMs = min(fastestMs, quiet == 0 ? median : fastestMs)
    (block, blockMs) = ([], 0)
  }
}

/// What was measured, in milliseconds and bytes; the names are those of results.json.
struct Measurement: Encodable, Sendable {
  let schemaVersion = 1
  let executorchVersion: String
  let startedUnixS = Int(Date().timeIntervalSince1970)
  let threads: Int
  var loadProgramMs = 0.0
  var rssAfterLoadBytes = 0
  var peakRssBytes = 0
  let method: String
  var warmup = 0
  var steady: Bool?
  var loadMethodMs = 0.0
  var firstInferenceMs = 0.0
  var outputs: [Output] = []
  var samplesMs: [Double] = []
}

struct Benchmark {
  let payload: Payload
  let size: Payload.Size
  private let folders: Folders
  private let warmup, iterations, threads: Int
  private let writesOutputs: Bool

  init(_ options: Options, in folders: Folders) throws {
    self.folders = folders
    payload = try Payload.read(in: folders.model)
    let wanted = options.values["size"] ?? payload.sizes.first?.name
    guard let size = payload.sizes.first(where: { $0.name == wanted }) else {
      throw Failure(.usage, "the model has no size '\(wanted ?? "")'")
    }
    self.size = size
    warmup = try options.number("warmup", from: -1, or: payload.warmup)
    iterations = try options.number("iterations", from: 1, or: payload.iterations)
    threads = try options.number("threads", from: 0, or: payload.threads)
    writesOutputs = options.flag("outputs")
  }

  /// Measures, and compares the outputs of the first inference with those that are expected; `told`
  /// gets how much of the timed part is done, from 0 to 1.
  func run(_ model: some Model, told: (Double) -> Void) throws -> (Measurement, [Verdict]) {
    var found = Measurement(
      executorchVersion: payload.executorchVersion, threads: useThreads(threads),
      method: payload.method)
    found.loadProgramMs = try timed(model.loadProgram)
    found.loadMethodMs = try timed(model.loadMethod)
    found.rssAfterLoadBytes = Int(native_memory().peak_bytes)
    found.firstInferenceMs = try timed(model.infer)
    // A method with state gives other outputs from now on.
    let first = try model.outputs()
    if writesOutputs { found.outputs = try write(first) }
    var warming = Warmup()
    while warmup < 0 ? !warming.isOver : warming.inferences < warmup {
      warming.add(try sample(model))
    }
    found.warmup = warming.inferences
    found.steady = warmup < 0 ? warming.isSteady : nil
    // The screen is told now and then: drawing it would slow down what is measured.
    let stretch = max(1, iterations / 10)
    for i in 1...iterations {
      found.samplesMs.append(try sample(model))
      if i % stretch == 0 { told(Double(i) / Double(iterations)) }
    }
    found.peakRssBytes = Int(native_memory().peak_bytes)
    let verdicts = zip(first, size.expected).enumerated().map {
      Verdict(id: $0, $1.0, expected: $1.1, in: folders.model)
    }
    return (found, verdicts)
  }

  /// The task is cancelled when the app leaves the front.
  private func sample(_ model: some Model) throws -> Double {
    let ms = try timed(model.infer)
    if Task.isCancelled { throw Failure.interrupted }
    return ms
  }

  private func write(_ outputs: [Output]) throws -> [Output] {
    let folder = folders.documents.appending(path: "outputs")
    try? FileManager.default.removeItem(at: folder)
    try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    var written = outputs
    for i in written.indices where written[i].value?.isFinite == false { written[i].value = nil }
    for (i, output) in outputs.enumerated() where output.kind == "Tensor" {
      written[i].path = "output-\(i).bin"
      try output.bytes.write(to: folder.appending(path: written[i].path!))
    }
    return written
  }
}

/// How far an output is from what the model gave where it was exported.
struct Verdict: Identifiable, Sendable {
  let id: Int
  let name: String
  /// The largest difference; nil where nothing can be compared.
  let difference: Double?
  let isRight: Bool

  init(id: Int, _ output: Output, expected: Payload.Value, in folder: URL) {
    self.id = id
    name = expected.name ?? "\(id)"
    let file = expected.path.flatMap { try? Data(contentsOf: folder.appending(path: $0)) }
    let wanted = file.flatMap { numbers($0, expected.dtype) } ?? [expected.value?.double ?? .nan]
    let given = numbers(output.bytes, output.dtype) ?? [output.value ?? .nan]
    let comparable = output.shape == expected.shape && given.count == wanted.count
    let pairs = zip(given, wanted)
    difference = comparable ? pairs.map { abs($0 - $1) }.max() : nil
    isRight = comparable && pairs.allSatisfy { $0 == $1 || abs($0 - $1) <= expected.atol ?? 0 }
  }
}

/// The elements of a tensor; nil for a type that is not compared.
private func numbers(_ bytes: Data, _ dtype: String?) -> [Double]? {
  func all<T>(_ type: T.Type) -> [T] {
    bytes.withUnsafeBytes { raw in
      (0..<raw.count / MemoryLayout<T>.size).map {
        raw.loadUnaligned(fromByteOffset: $0 * MemoryLayout<T>.size, as: type)
      }
    }
  }
  return switch dtype {
  case "float32": all(Float.self).map(Double.init)
  case "float64": all(Double.self)
  case "float16": all(Float16.self).map(Double.init)
  case "bfloat16": all(UInt16.self).map { Double(Float(bitPattern: UInt32($0) << 16)) }
  case "uint8", "bool": all(UInt8.self).map(Double.init)
  case "int8": all(Int8.self).map(Double.init)
  case "int16": all(Int16.self).map(Double.init)
  case "int32": all(Int32.self).map(Double.init)
  case "int64": all(Int64.self).map(Double.init)
  default: nil
  }
}

/// The value below which `percent` of the sorted values are, with linear interpolation.
func percentile(_ sorted: [Double], _ percent: Double) -> Double {
  let place = Double(sorted.count - 1) * percent / 100
  let (below, above) = (Int(place.rounded(.down)), Int(place.rounded(.up)))
  return sorted[below] + (sorted[above] - sorted[below]) * (place - Double(below))
}
