// How a language model is called: tokens in, logits out. Foundation only.

import Foundation

/// A method of the program; it keeps keys and values of earlier tokens for all of them.
struct Method: Decodable, Sendable {
  let name, role: String
  /// The most tokens that a call takes, and whether it takes fewer, too.
  let maxTokens: Int
  let dynamic: Bool
  /// Where a call has to end at the latest.
  let capacity: Int
}

/// What model.json says of a language model.
struct Language: Decodable, Sendable {
  struct Chat: Decodable, Sendable {
    let before, after: String
    /// From the end of an answer to the next message; nil if a conversation cannot go on so.
    var between: String?
  }
  let methods: [Method]
  let context, newTokens: Int
  let stopIds: [Int]
  let bosId, rewind: Int?
  let sampling: Sampling
  let tokenizer: String?
  let chat: Chat?
}

/// Runs methods of a program. `Program` is the real one.
protocol LanguageModel {
  func loadProgram() throws
  func load(_ method: String) throws
  /// The logits of the last token; they stay until the next call.
  func logits(_ method: String, _ tokens: ArraySlice<Int64>, at position: Int) throws -> Logits
}

/// Words as the model reads and writes them; without a tokenizer, the ids of tokens.
struct Speech {
  private let language: Language
  private let tokenizer: Tokenizer?

  init(_ language: Language, in folder: URL) throws {
    self.language = language
    tokenizer = try language.tokenizer.map {
      try Tokenizer(contentsOf: folder.appending(path: $0))
    }
  }

  /// Whether a text may follow what was said before.
  var continues: Bool { language.chat.map { $0.between != nil } ?? true }

  /// Of a text at the beginning, or of one that follows others.
  func ids(_ text: String, continues: Bool = false) throws -> [Int64] {
    guard let tokenizer else {
      return try text.split(separator: " ").map {
        guard let id = Int64($0) else { throw Failure(.usage, "'\($0)' is not a token id") }
        return id
      }
    }
    guard let chat = language.chat else {
      let first = continues ? [] : [language.bosId].compactMap { $0 }
      return (first + tokenizer.encode(text)).map(Int64.init)
    }
    let before = continues ? chat.between ?? "" : chat.before
    return tokenizer.encode(before + text + chat.after).map(Int64.init)
  }

  /// What is certain: a character may have bytes that are yet to come.
  func text(_ ids: [Int]) -> String {
    guard let tokenizer else { return ids.map(String.init).joined(separator: " ") }
    var scalars = tokenizer.decode(ids).unicodeScalars
    while scalars.last == "\u{fffd}" { scalars.removeLast() }
    return String(scalars)
  }
}

/// Calls the methods on a sequence of tokens, whose keys and values they keep.
final class Calls<Model: LanguageModel> {
  let model: Model
  private let methods: [Method]
  private let rewind: Int?
  /// Of the last token that was taken.
  private(set) var logits = Logits(start: nil, count: 0)
  /// The furthest end of a call since position 0.
  private var end = 0

  init(_ model: Model, _ methods: [Method], rewind: Int?) {
    self.model = model
    self.methods = methods
    self.rewind = rewind
  }

  /// Processes tokens in as many calls as needed and returns the position after them. `afterCall`
  /// gets the time of each call and returns whether to continue.
  func take(_ tokens: [Int64], at start: Int, afterCall: (Double) -> Bool) throws -> Int {
    var left = tokens[...]
    while !left.isEmpty {
      var taken = 0
      let ms = try timed { taken = try step(left, at: start + tokens.count - left.count) }
      left = left.dropFirst(taken)
      if !afterCall(ms) { break }
    }
    return start + tokens.count - left.count
  }

  /// Tokens that all methods together take at most.
  var context: Int {
    methods.filter { $0.dynamic || $0.maxTokens == 1 }.map(\.capacity).max() ?? 0
  }

  /// Whether what tokens at this position look back to is still there.
  func reaches(_ position: Int) -> Bool {
    position == 0 || end - position <= rewind ?? .max
  }

  /// Takes as many of the tokens as one call can; gives their number. A call that is filled up with
  /// padding leaves the last of them to the next one: its logits are those after the padding.
  @discardableResult
  func step(_ tokens: ArraySlice<Int64>, at position: Int) throws -> Int {
    guard reaches(position) else {
      throw Failure(.usage, "the position cannot be set back from \(end) to \(position)")
    }
    let (method, count) = try choose(tokens.count, at: position)
    let padding = method.dynamic ? 0 : method.maxTokens - count
    let given = tokens.prefix(count) + [Int64](repeating: 0, count: padding)
    logits = try model.logits(method.name, given, at: position)
    end = max(position == 0 ? 0 : end, position + count)
    return count
  }

  /// The call that takes the most tokens; of several, one for decoding, and the one with the least
  /// capacity, which looks at the smallest part of the cache.
  private func choose(_ count: Int, at position: Int) throws -> (Method, Int) {
    let calls = methods.map { method in
      let room = min(count, method.maxTokens, method.capacity - position)
      let whole = method.dynamic || room == method.maxTokens
      return (method, whole ? room : padded(method, count, at: position))
    }
    func cost(_ call: (Method, Int)) -> (Int, Int, Int) {
      (-call.1, call.0.role == "prefill" ? 1 : 0, call.0.capacity)
    }
    guard let best = calls.min(by: { cost($0) < cost($1) }), best.1 > 0 else {
      throw Failure(.usage, "no method takes a token at position \(position)")
    }
    return best
  }

  /// Of tokens that do not fill a method of one length, how many it takes with padding after them;
  /// 0 where single tokens are faster. What a call writes for the padding is overwritten before a
  /// token looks at it; a cache that cannot be set back would lose what was there before.
  private func padded(_ method: Method, _ count: Int, at position: Int) -> Int {
    let taken = count - 1
    let fits = rewind == nil && method.capacity - position >= method.maxTokens
    return fits && taken >= max(2, method.maxTokens / 16) ? taken : 0
  }
}
