// One run of the app: what it was asked, what it was given, what it tells. Foundation only.

import Foundation

/// Why a run failed, as results.json says it.
struct Failure: Error, Encodable {
  enum Kind: String, Encodable { case load, run, program, memory, usage }
  let kind: Kind
  let message: String

  init(_ kind: Kind, _ message: String) {
    self.kind = kind
    self.message = message
  }
}

/// The words `key=value` with which the app was started; other words are the system's.
struct Options: Sendable {
  private static let names: Set = [
    "run_id", "iterations", "warmup", "threads", "size", "outputs", "program", "request",
  ]
  let values: [String: String]

  init(_ arguments: [String]) throws {
    var values: [String: String] = [:]
    for word in arguments where word.contains("=") && !word.hasPrefix("-") {
      let parts = word.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
      guard Self.names.contains(String(parts[0])) else {
        throw Failure(.usage, "there is no option \(parts[0])")
      }
      values[String(parts[0])] = String(parts[1])
    }
    self.values = values
  }

  /// Also of options that are wrong otherwise: what is wrong is a result of that run.
  static func runId(_ arguments: [String]) -> String? {
    arguments.first { $0.hasPrefix("run_id=") }.map { String($0.dropFirst(7)) }
  }

  func flag(_ name: String) -> Bool { ["1", "true"].contains(values[name]) }

  /// A whole number from `least` on; `other` where the option was not given.
  func number(_ name: String, from least: Int, or other: Int) throws -> Int {
    guard let text = values[name] else { return other }
    guard let number = Int(text), number >= least else {
      throw Failure(.usage, "\(name) takes a whole number from \(least) on, not '\(text)'")
    }
    return number
  }
}

/// What the folder `Model` of the app says of the model.
struct Payload: Decodable, Sendable {
  struct Value: Decodable, Sendable {
    let kind: String
    var name, dtype, path: String?
    var shape: [Int]?
    var value: Number?
    var atol: Double?
  }
  /// Also true and false.
  struct Number: Decodable, Sendable {
    let double: Double

    init(from decoder: any Decoder) throws {
      let container = try decoder.singleValueContainer()
      double =
        try (try? container.decode(Bool.self)).map { $0 ? 1 : 0 } ?? container.decode(Double.self)
    }
  }
  struct Size: Decodable, Sendable {
    let name: String
    let inputs, expected: [Value]
  }
  let name, program, executorchVersion, quantization, method: String
  let bundled: Bool
  let programBytes, warmup, iterations, threads: Int
  let backends: [String]
  let sizes: [Size]

  static func read<T: Decodable>(_ type: T.Type = Payload.self, in folder: URL) throws -> T {
    let decoder = JSONDecoder()
    decoder.keyDecodingStrategy = .convertFromSnakeCase
    do {
      return try decoder.decode(type, from: Data(contentsOf: folder.appending(path: "model.json")))
    } catch {
      throw Failure(.program, "model.json cannot be read: \(error)")
    }
  }
}

/// Where the app finds the model, and where it leaves its results.
struct Folders: Sendable {
  var model = Bundle.main.resourceURL!.appending(path: "Model")
  var documents = FileManager.default.urls(for: .documentDirectory, in: .userDomainMask)[0]

  /// The bundled program, or one that was copied to Documents; unless the options name another.
  func program(_ payload: Payload, _ options: Options) throws -> URL {
    let found =
      options.values["program"].map { URL(filePath: $0, relativeTo: documents) }
      ?? (payload.bundled ? model : documents).appending(path: payload.program)
    guard FileManager.default.isReadableFile(atPath: found.path) else {
      throw Failure(.program, "there is no program \(found.path)")
    }
    return found
  }
}

/// JSON wants every key, also of what is not known.
struct Nullable<T: Encodable & Sendable>: Encodable, Sendable {
  let value: T?

  func encode(to encoder: any Encoder) throws {
    var container = encoder.singleValueContainer()
    if let value { try container.encode(value) } else { try container.encodeNil() }
  }
}

/// What ran, and on which system.
struct AppFacts: Encodable, Sendable {
  let id, version, system: String
  let debuggable: Bool

  init() {
    let number = ProcessInfo.processInfo.operatingSystemVersion
    id = Bundle.main.bundleIdentifier ?? ""
    version = Bundle.main.infoDictionary?["CFBundleShortVersionString"] as? String ?? ""
    system = "iOS \(number.majorVersion).\(number.minorVersion).\(number.patchVersion)"
    #if DEBUG
      debuggable = true
    #else
      debuggable = false
    #endif
  }
}

/// results.json; `Results` is that of the workload.
struct Report<Results: Encodable & Sendable>: Encodable, Sendable {
  struct Thermal: Encodable, Sendable {
    let statusBefore, statusAfter: String
    // iOS does not tell how far away the next state is.
    let headroomBefore = Nullable<Double>(value: nil), headroomAfter = Nullable<Double>(value: nil)
  }
  let schemaVersion = 1
  let runId: String
  let status: String
  let error: Nullable<Failure>
  let app = AppFacts()
  let thermal: Thermal
  let results: Nullable<Results>

  /// Runs `work` and tells how that ended.
  init(runId: String, work: () throws -> Results) {
    let before = thermalStatus()
    let outcome = Result { try work() }
    self.runId = runId
    thermal = Thermal(statusBefore: before, statusAfter: thermalStatus())
    switch outcome {
    case .success(let found):
      (status, error, results) = ("done", Nullable(value: nil), Nullable(value: found))
    case .failure(let reason):
      let failure = reason as? Failure ?? Failure(.run, "\(reason)")
      (status, error, results) = ("failed", Nullable(value: failure), Nullable(value: nil))
    }
  }

  /// Writes the file, all of it or nothing.
  func write(to folder: URL) throws {
    let encoder = JSONEncoder()
    encoder.keyEncodingStrategy = .convertToSnakeCase
    encoder.outputFormatting = [.prettyPrinted, .sortedKeys, .withoutEscapingSlashes]
    try encoder.encode(self).write(to: folder.appending(path: "results.json"), options: .atomic)
  }
}

/// How warm the device is, by the names that Android has for it.
func thermalStatus() -> String {
  #if canImport(Darwin)
    switch ProcessInfo.processInfo.thermalState {
    case .nominal: return "none"
    case .fair: return "light"
    case .serious: return "severe"
    case .critical: return "critical"
    @unknown default: return "unknown"
    }
  #else
    return "none"
  #endif
}

/// ExecuTorch's threads from now on; 0 leaves their number as it is.
func useThreads(_ number: Int) -> Int { Int(native_threads(UInt32(clamping: number))) }

/// Whether an error of ExecuTorch's (runtime/core/error.h) is one of memory or other resources.
func isOfMemory(_ code: Int) -> Bool { [33, 37].contains(code) }

/// Milliseconds that something takes.
func timed(_ work: () throws -> Void) rethrows -> Double {
  let clock = ContinuousClock()
  let took = try clock.measure(work).components
  return Double(took.seconds) * 1e3 + Double(took.attoseconds) / 1e15
}

/// The value below which `percent` of the values are, with linear interpolation.
func percentile(_ values: [Double], _ percent: Double) -> Double {
  let sorted = values.sorted()
  guard let last = sorted.last else { return 0 }
  let place = Double(sorted.count - 1) * percent / 100
  let below = Int(place)
  guard below + 1 < sorted.count else { return last }
  return sorted[below] + (sorted[below + 1] - sorted[below]) * (place - Double(below))
}
