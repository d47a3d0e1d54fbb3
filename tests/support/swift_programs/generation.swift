// Runs parts of the app's generating code, as the first word says.

import Foundation

/// Logits that depend on the last token and its position; prints its calls.
final class Arithmetic: LanguageModel {
  private var logits = [Float](repeating: 0, count: 48)

  func loadProgram() {}
  func load(_ method: String) { print("load \(method)") }
  func logits(
    _ method: String, _ tokens: ArraySlice<Int64>, at position: Int
  ) throws -> UnsafeBufferPointer<Float> {
    print("call \(method) \(tokens.count) \(position)")
    let last = Int(tokens.last!) * 31 + (position + tokens.count) * 7
    for i in logits.indices { logits[i] = Float((last + i * 13) % 97) / 10 }
    return logits.withUnsafeBufferPointer { $0 }
  }
}

func generate(_ words: [String]) throws {
  let folders = Folders(
    model: URL(filePath: words[0], directoryHint: .isDirectory),
    documents: URL(filePath: words[1], directoryHint: .isDirectory))
  let given = Array(words[3...])
  _ = Report(runId: Options.runId(given) ?? "", in: folders.documents) {
    let options = try Options(given)
    let payload = try Payload.read(in: folders.model)
    let speech = try Speech(payload.generation, in: folders.model)
    let request = try Request(options, payload.generation, in: folders) { try speech.ids("3 1 4") }
    var told = 0
    func generated(_ model: some LanguageModel) throws -> Measurement {
      try Generator(request, model) { text in
        told += 1
        return words[2] != "stop" || told < 3
      }.run(payload, options)
    }
    return words[2] == "real"
      ? try generated(Program(try folders.program(payload, options))) : try generated(Arithmetic())
  }
}

/// A conversation: MODEL MANNER, and a line of stdin for each message; `/new` begins another one.
func talk(_ words: [String]) throws {
  let folder = URL(filePath: words[0], directoryHint: .isDirectory)
  let folders = Folders(model: folder, documents: folder)
  let payload = try Payload.read(in: folder)
  func says(_ model: some LanguageModel) throws {
    try answer(Conversation(payload.generation, model, in: folder), payload.generation, words[1])
  }
  words[1] == "real"
    ? try says(Program(try folders.program(payload, Options([])))) : try says(Arithmetic())
}

func answer(
  _ conversation: Conversation<some LanguageModel>, _ language: Language, _ manner: String
) throws {
  var settings = ChatSettings(language)
  while let line = readLine() {
    if line == "/new" {
      conversation.restart()
      continue
    }
    if line.hasPrefix("/temperature ") {
      settings.sampling.temperature = Double(line.dropFirst(13))!
      print("valid", settings.isValid)
      continue
    }
    var parts = 0
    do {
      let reply = try conversation.answer(line, settings) { part in
        parts += 1
        return manner != "stop \(parts)"
      }
      if let reply {
        print("answer '\(reply.text)' \(reply.tokens) \(reply.used) of \(conversation.context)")
        print("times", reply.firstTokenMs > 0, reply.restMs > 0, (reply.rate ?? 0) > 0)
      } else {
        print("nothing")
      }
    } catch let failure as Failure { print(failure.kind, failure.message) }
  }
}

/// Draws tokens: TEMPERATURE TOP_K TOP_P SEED COUNT MIN_P REPETITION_PENALTY, and logits on stdin.
func sample(_ words: [String]) throws {
  var sampler = Sampler(
    Sampling(
      temperature: Double(words[0])!, topK: Int(words[1])!, topP: Double(words[2])!,
      seed: UInt64(words[3])!, minP: Double(words[5])!, repetitionPenalty: Double(words[6])!))
  let input = String(decoding: FileHandle.standardInput.readDataToEndOfFile(), as: UTF8.self)
  let logits = input.split(separator: "\n").map { Float(Double($0)!) }
  for _ in 0..<Int(words[4])! {
    let token = try logits.withUnsafeBufferPointer { try sampler.choose($0) }
    sampler.see([Int64(token)])
    print(token, terminator: " ")
  }
}

/// Tokens of texts, and their texts again: FILE, and a JSON list of texts on stdin.
func tokenize(_ words: [String]) throws {
  let tokenizer = try Tokenizer(contentsOf: URL(filePath: words[0]))
  let input = FileHandle.standardInput.readDataToEndOfFile()
  struct Answer: Encodable {
    let ids: [Int]
    let text: String
  }
  let answers = try JSONDecoder().decode([String].self, from: input).map {
    let ids = tokenizer.encode($0)
    return Answer(ids: ids, text: tokenizer.decode(ids))
  }
  print(String(decoding: try JSONEncoder().encode(answers), as: UTF8.self))
}

let words = Array(CommandLine.arguments.dropFirst(2))
do {
  switch CommandLine.arguments[1] {
  case "generate": try generate(words)
  case "sample": try sample(words)
  case "talk": try talk(words)
  default: try tokenize(words)
  }
} catch let failure as Failure {
  print("\(failure.kind) \(failure.message)")
}
