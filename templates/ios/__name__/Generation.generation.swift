// Generates text, and tells the time of every token. Foundation only.

import Foundation

/// One prompt, with what is generated after it.
struct Point: Sendable {
  var name = "screen"
  /// Tokens that are in the cache before the prompt.
  var depth = 0
  let newTokens: Int
  var repetitions = 1
  let prompt: [Int64]
  /// What is fed in place of the tokens that are chosen; empty where these are.
  var followed: [Int64] = []
}

/// What is to be generated: by the screen, or by a file of lines that a tool wrote.
struct Request: Sendable {
  var methods: [Method] = []
  var rewind: Int?
  var sampling = Sampling()
  var stopIds: Set<Int> = []
  /// Tokens whose logits are in the results of points that follow a text.
  var logitIds: [Int] = []
  var points: [Point] = []

  /// The file that the options name; else the prompt.
  init(
    _ options: Options, _ language: Language, in folders: Folders, prompt: () throws -> [Int64]
  ) throws {
    guard let path = options.values["request"] else {
      methods = language.methods
      rewind = language.rewind
      sampling = language.sampling
      stopIds = Set(language.stopIds)
      points = [Point(newTokens: language.newTokens, prompt: try prompt())]
      return
    }
    let file = URL(filePath: path, relativeTo: folders.documents)
    for line in try String(contentsOf: file, encoding: .utf8).split(separator: "\n") {
      guard try read(line, beside: file) else {
        throw Failure(.usage, "the request \(file.path) has the line '\(line)'")
      }
    }
  }

  /// Whether it is a line of a request (etdeploy's documentation of the runner lists them).
  private mutating func read(_ line: Substring, beside file: URL) throws -> Bool {
    let words = line.split(separator: " ", maxSplits: 5).map(String.init)
    let numbers = words.map { Int($0) ?? -1 }
    switch (words.first, words.count) {
    case ("method", 6) where numbers[3] >= 1 && numbers[5] >= 1:
      methods.append(
        Method(
          name: words[1], role: words[2], maxTokens: numbers[3], dynamic: numbers[4] == 1,
          capacity: numbers[5]))
    case ("rewind", 2) where numbers[1] >= 0: rewind = numbers[1]
    case ("sampling", 6):
      let last = words[5].split(separator: " ").compactMap { Double($0) }
      guard let temperature = Double(words[1]), let topP = Double(words[3]),
        let seed = UInt64(words[4]), last.count == 2
      else { return false }
      sampling = Sampling(
        temperature: temperature, topK: numbers[2], topP: topP, seed: seed, minP: last[0],
        repetitionPenalty: last[1])
    case ("stop", _): stopIds = Set(line.split(separator: " ").compactMap { Int($0) })
    case ("logits", _): logitIds = line.split(separator: " ").compactMap { Int($0) }
    case ("follow", 4...) where numbers[2] >= 1:
      let text = try ids(words[3...].joined(separator: " "), beside: file)
      let length = text.count - numbers[2] + 1
      guard length >= 1 else { return false }
      points.append(
        Point(
          name: words[1], newTokens: numbers[2], prompt: Array(text[..<length]),
          followed: Array(text[length...])))
    case ("point", 6) where numbers[2] >= 0 && numbers[3] >= 1 && numbers[4] >= 1:
      let prompt = try ids(words[5], beside: file)
      points.append(
        Point(
          name: words[1], depth: numbers[2], newTokens: numbers[3], repetitions: numbers[4],
          prompt: prompt))
    default: return false
    }
    return true
  }

  private func ids(_ path: String, beside file: URL) throws -> [Int64] {
    try Data(contentsOf: URL(filePath: path, relativeTo: file)).withUnsafeBytes { raw in
      (0..<raw.count / 8).map { raw.loadUnaligned(fromByteOffset: $0 * 8, as: Int64.self) }
    }
  }
}

/// One repetition of a point; the names are those of results.json, times are in milliseconds.
struct Generated: Encodable, Sendable {
  let point: String
  var prefillMs: [Double] = []
  var firstTokenMs = 0.0
  var tokenMs: [Double] = []
  var tokenIds: [Int] = []
  var logits: [[Float]] = []
  var stopped = false
  var promptTokens = 0

  private enum CodingKeys: String, CodingKey {
    case point, prefillMs, firstTokenMs, tokenMs, tokenIds, logits, stopped
  }
  /// Tokens of the prompt in each second until the first token, and of the answer after it.
  var prefillRate: Double { Double(promptTokens) * 1000 / firstTokenMs }
  var decodeRate: Double { Double(tokenMs.count) * 1000 / tokenMs.reduce(0, +) }
}

/// What was measured; the names are those of results.json.
struct Measurement: Encodable, Sendable {
  struct Generation: Encodable, Sendable {
    var loadMethodsMs: [String: Double] = [:]
    var runs: [Generated] = []
  }
  let schemaVersion = 1
  let executorchVersion: String
  let startedUnixS = Int(Date().timeIntervalSince1970)
  let threads: Int
  var loadProgramMs = 0.0
  var rssAfterLoadBytes = 0
  var peakRssBytes = 0
  var generation = Generation()

  var loadMs: Double { generation.loadMethodsMs.values.reduce(loadProgramMs, +) }
}

final class Generator<Model: LanguageModel> {
  private let request: Request
  private let calls: Calls<Model>
  /// Called after each part of a prompt and each new token; tells whether the text goes on.
  private let told: (Generated) -> Bool
  private var sampler: Sampler

  init(_ request: Request, _ model: Model, told: @escaping (Generated) -> Bool) {
    self.request = request
    calls = Calls(model, request.methods, rewind: request.rewind)
    self.told = told
    sampler = Sampler(request.sampling)
  }

  func run(_ payload: Payload, _ options: Options) throws -> Measurement {
    try check()
    let threads = try options.number("threads", from: 0, or: payload.threads)
    var found = Measurement(
      executorchVersion: payload.executorchVersion, threads: useThreads(threads))
    found.loadProgramMs = try timed(calls.model.loadProgram)
    // A method may have two roles; it is loaded once.
    for name in request.methods.map(\.name) where found.generation.loadMethodsMs[name] == nil {
      found.generation.loadMethodsMs[name] = try timed { try calls.model.load(name) }
    }
    found.rssAfterLoadBytes = Int(native_memory().peak_bytes)
    for point in request.points {
      // What is before a prompt is the prompt's tokens, again and again.
      let before = (0..<point.depth).map { point.prompt[$0 % point.prompt.count] }
      for i in 0..<point.repetitions {
        if i == 0 || !calls.reaches(point.depth) { _ = try calls.take(before, at: 0) { _ in true } }
        found.generation.runs.append(try generate(point))
      }
    }
    found.peakRssBytes = Int(native_memory().peak_bytes)
    return found
  }

  /// Before anything runs: a run may take minutes.
  private func check() throws {
    for point in request.points {
      let length = point.depth + point.prompt.count + point.newTokens - 1
      if point.prompt.isEmpty { throw Failure(.usage, "the prompt has no token") }
      if length > calls.context {
        throw Failure(.usage, "\(length) tokens do not fit into a context of \(calls.context)")
      }
    }
  }

  private func generate(_ point: Point) throws -> Generated {
    var text = Generated(point: point.name, promptTokens: point.prompt.count)
    sampler = Sampler(request.sampling)
    sampler.see(point.prompt)
    var position = point.depth
    let prefilled = try timed {
      position = try calls.take(point.prompt, at: point.depth) { ms in
        text.prefillMs.append(ms)
        return told(text)
      }
      if position == point.depth + point.prompt.count { try choose(&text, point) }
    }
    guard !text.tokenIds.isEmpty else { return text }
    text.firstTokenMs = prefilled
    while told(text), !text.stopped, text.tokenIds.count < point.newTokens {
      let ms = try timed {
        let last = text.tokenIds.count - 1
        let fed = point.followed.isEmpty ? Int64(text.tokenIds[last]) : point.followed[last]
        sampler.see([fed])
        try calls.step([fed], at: position)
        try choose(&text, point)
      }
      position += 1
      text.tokenMs.append(ms)
    }
    return text
  }

  private func choose(_ text: inout Generated, _ point: Point) throws {
    text.tokenIds.append(try sampler.choose(calls.logits))
    if !point.followed.isEmpty {
      // JSON has no infinity.
      let most = Float.greatestFiniteMagnitude
      text.logits.append(request.logitIds.map { min(max(calls.logits[$0], -most), most) })
    }
    text.stopped = request.stopIds.contains(text.tokenIds[text.tokenIds.count - 1])
  }
}
