// A conversation with the model. Foundation only.

import Foundation

/// How an answer is made.
struct ChatSettings: Sendable {
  var sampling: Sampling
  var newTokens: Int

  init(_ language: Language) {
    (sampling, newTokens) = (language.sampling, language.newTokens)
  }

  /// Whether the numbers that a person may change are in their ranges.
  var isValid: Bool {
    (0...100).contains(sampling.temperature) && sampling.topK >= 0
      && (0...1).contains(sampling.topP) && newTokens >= 1
  }
}

/// An answer, or as much of it as is known; times are in milliseconds.
struct Reply: Sendable {
  var text = ""
  var tokens = 0
  var firstTokenMs = 0.0
  var restMs = 0.0
  /// Tokens of the conversation in the cache.
  var used = 0

  /// Tokens of the answer in each second after the first.
  var rate: Double? { tokens > 1 ? Double(tokens - 1) * 1000 / restMs : nil }
}

/// Model and tokenizer are loaded once, and all that was said stays in the cache: of a new message,
/// only its own tokens are read.
final class Conversation<Model: LanguageModel> {
  private let language: Language
  private let speech: Speech
  private let calls: Calls<Model>
  /// Tokens of the conversation in the cache.
  private(set) var used = 0
  /// The last token of an answer, if it was cut off: the cache does not have it yet.
  private var pending: [Int64] = []
  private var turns = 0

  init(_ language: Language, _ model: Model, in folder: URL) throws {
    self.language = language
    speech = try Speech(language, in: folder)
    calls = Calls(model, language.methods, rewind: language.rewind)
    try model.loadProgram()
    for name in Set(language.methods.map(\.name)).sorted() { try model.load(name) }
  }

  /// Tokens that the model takes at most.
  var context: Int { calls.context }

  /// Forgets all that was said.
  func restart() { (used, pending) = (0, []) }

  /// The answer to a message. `afterToken` gets it as far as it is known, and tells whether it goes
  /// on. nil if the message was not read to its end: then it is not part of the conversation.
  func answer(
    _ words: String, _ settings: ChatSettings, afterToken: (Reply) -> Bool
  ) throws -> Reply? {
    // Without a way to go on, each message is a conversation of its own.
    if !speech.continues { restart() }
    let prompt = try pending + speech.ids(words, continues: used > 0)
    guard prompt.count <= context - used else {
      throw Failure(
        .usage,
        "The message needs \(prompt.count) tokens, and the model has room for \(context - used) of "
          + "\(context). Begin a new conversation, or write less.")
    }
    var sampling = settings.sampling
    sampling.seed &+= UInt64(turns)  // each answer gets other random numbers
    turns += 1
    var sampler = Sampler(sampling)
    sampler.see(prompt)
    var reply = Reply(used: used)
    var next = 0
    var isRead = false
    reply.firstTokenMs = try timed {
      let end = try calls.take(prompt, at: used) { _ in afterToken(reply) }
      isRead = end == used + prompt.count
      guard isRead else { return }
      (used, pending) = (end, [])
      next = try sampler.choose(calls.logits)
    }
    guard isRead else {
      if !calls.reaches(used) { restart() }
      return nil
    }
    var ids = [next]
    while !language.stopIds.contains(next) {
      (reply.text, reply.tokens, reply.used) = (speech.text(ids), ids.count, used)
      guard afterToken(reply), ids.count < settings.newTokens, used < context else {
        pending = [Int64(next)]
        break
      }
      reply.restMs += try timed {
        sampler.see([Int64(next)])
        try calls.step([Int64(next)], at: used)
        used += 1
        next = try sampler.choose(calls.logits)
      }
      ids.append(next)
    }
    let isEnded = language.stopIds.contains(next)
    reply.text = speech.text(isEnded ? ids.dropLast() : ids)
    (reply.tokens, reply.used) = (ids.count, used)
    return reply
  }
}
