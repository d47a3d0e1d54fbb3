// A conversation: MODEL MANNER, and a line of stdin for each message; `/new` begins another one.

import Foundation

/// Logits that depend on the last token and its position; prints its calls.
final class Arithmetic: LanguageModel {
  private var logits = [Float](repeating: 0, count: 48)

  func loadProgram() { print("program") }
  func load(_ method: String) { print("load \(method)") }
  func logits(
    _ method: String, _ tokens: ArraySlice<Int64>, at position: Int
  ) throws -> UnsafeBufferPointer<Float> {
    print("call \(tokens.map(\.description).joined(separator: ",")) at \(position)")
    let last = Int(tokens.last!) * 31 + (position + tokens.count) * 7
    for i in logits.indices { logits[i] = Float((last + i * 13) % 97) / 10 }
    return logits.withUnsafeBufferPointer { $0 }
  }
}

let words = Array(CommandLine.arguments.dropFirst())
let folders = Folders(
  model: URL(filePath: words[0], directoryHint: .isDirectory),
  documents: URL(filePath: words[0], directoryHint: .isDirectory))
let payload = try Payload.read(in: folders.model)

func talk(_ conversation: Conversation<some LanguageModel>, _ language: Language) throws {
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
        return words[1] != "stop \(parts)"
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

do {
  if words[1] == "real" {
    let program = Program(try folders.program(payload, Options([])))
    try talk(Conversation(payload.generation, program, in: folders.model), payload.generation)
  } else {
    try talk(Conversation(payload.generation, Arithmetic(), in: folders.model), payload.generation)
  }
} catch let failure as Failure {
  print(failure.kind, failure.message)
}
