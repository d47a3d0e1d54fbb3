// Text to tokens and back, by byte pair encoding, from a tokenizer.json. Two kinds are known: on
// bytes (GPT-2, Llama 3, Qwen, SmolLM), and on characters with a mark for spaces (Gemma, Llama 2).

import Foundation

struct Tokenizer {
  private typealias Step = (_ piece: String, _ isFirst: Bool) -> [String]

  private var ids: [[UInt8]: Int] = [:]
  private var texts: [Int: [UInt8]] = [:]
  /// By two tokens: how early they are joined, and the token that they become.
  private var merges: [Pair: (rank: Int, id: Int)] = [:]
  private var added: [[UInt8]: Int] = [:]
  private var special: Set<Int> = []
  private let addedPattern: NSRegularExpression?
  private let steps: [Step]
  private let isByteLevel, stripsSpace, ignoresMerges, fallsBack, fusesUnknown: Bool
  private let unknown: Int?

  init(contentsOf file: URL) throws {
    guard let json = JSON(Array(try Data(contentsOf: file))), json["model"]["type"].text == "BPE"
    else { throw Failure(.program, "\(file.lastPathComponent) is no byte pair encoding") }
    let model = json["model"]
    for (text, id) in model["vocab"].members { ids[text] = id.number }
    for (text, id) in ids { texts[id] = text }
    for token in json["added_tokens"].list {
      guard let text = token["content"].bytes, let id = token["id"].number else { continue }
      added[text] = id
      texts[id] = text
      if token["special"].isTrue { special.insert(id) }
    }
    for (rank, merge) in model["merges"].list.enumerated() {
      let parts =
        merge.bytes?.split(separator: 32).map(Array.init) ?? merge.list.compactMap(\.bytes)
      guard parts.count == 2, let left = ids[parts[0]], let right = ids[parts[1]],
        let id = ids[parts[0] + parts[1]]
      else { throw Failure(.program, "the tokenizer joins what it does not have") }
      merges[Pair(left: left, right: right)] = (rank, id)
    }
    unknown = model["unk_token"].bytes.flatMap { [ids] in ids[$0] }
    ignoresMerges = model["ignore_merges"].isTrue
    fallsBack = model["byte_fallback"].isTrue
    fusesUnknown = model["fuse_unk"].isTrue
    let splits = json["pre_tokenizer"].flat("pretokenizers")
    isByteLevel = splits.contains { $0["type"].text == "ByteLevel" }
    steps =
      try json["normalizer"].flat("normalizers").map(Tokenizer.normalizer)
      + splits.map(Tokenizer.splitter)
    stripsSpace = json["decoder"].flat("decoders").contains {
      $0["type"].text == "Strip"
        || $0["type"].text == "Metaspace" && $0["prepend_scheme"].text != "never"
    }
    // Of several that fit, the longest is meant.
    let words = added.keys.sorted { $0.count > $1.count }.map {
      NSRegularExpression.escapedPattern(for: String(decoding: $0, as: UTF8.self))
    }
    addedPattern =
      words.isEmpty ? nil : try NSRegularExpression(pattern: words.joined(separator: "|"))
  }

  /// The tokens of a text; those with a meaning of their own are found in it.
  func encode(_ text: String) -> [Int] {
    let parts = addedPattern.map { split(text, $0) } ?? [(text, false)]
    return parts.enumerated().flatMap { i, part in
      if part.isMatch { return [added[Array(part.piece.utf8)]].compactMap { $0 } }
      var pieces = [part.piece]
      for step in steps {
        pieces = pieces.enumerated().flatMap { step($1, i == 0 && $0 == 0) }
      }
      return pieces.filter { !$0.isEmpty }.flatMap(join)
    }
  }

  /// The text of tokens, without special ones; bytes that are no character (yet) are marked.
  func decode(_ tokens: [Int]) -> String {
    let bytes = tokens.flatMap { id -> [UInt8] in
      guard !special.contains(id), let text = texts[id] else { return [] }
      if added[text] != nil { return text }
      let scalars = String(decoding: text, as: UTF8.self).unicodeScalars
      if isByteLevel { return scalars.compactMap { byteOfLetter[$0] } }
      if text.count == 6, text.starts(with: "<0x".utf8) {
        return [UInt8(String(decoding: text[3..<5], as: UTF8.self), radix: 16) ?? 0]
      }
      return scalars.flatMap { Array(String($0 == mark ? " " : $0).utf8) }
    }
    let strips = stripsSpace && bytes.first == 32
    return String(decoding: strips ? bytes.dropFirst() : bytes[...], as: UTF8.self)
  }

  /// Joins neighbours, those with the lowest rank first, the leftmost of several.
  private func join(_ piece: String) -> [Int] {
    let text = isByteLevel ? piece.utf8.map { letters[Int($0)] } : Array(piece.unicodeScalars)
    let whole = Array(String(String.UnicodeScalarView(text)).utf8)
    if ignoresMerges, let id = ids[whole] { return [id] }
    var tokens = symbols(text)
    func merge(_ i: Int) -> (rank: Int, id: Int)? {
      i + 1 < tokens.count ? merges[Pair(left: tokens[i], right: tokens[i + 1])] : nil
    }
    var ranks = tokens.indices.map { merge($0)?.rank ?? .max }
    while let rank = ranks.min(), rank != .max, let i = ranks.firstIndex(of: rank) {
      tokens[i] = merge(i)!.id
      tokens.remove(at: i + 1)
      ranks.remove(at: i + 1)
      for place in max(0, i - 1)...i { ranks[place] = merge(place)?.rank ?? .max }
    }
    return tokens
  }

  /// The token of each character, or of its bytes.
  private func symbols(_ text: [Unicode.Scalar]) -> [Int] {
    var found: [Int] = []
    var wasUnknown = false
    for scalar in text {
      let bytes = Array(String(scalar).utf8)
      let single =
        fallsBack ? bytes.compactMap { ids[Array(String(format: "<0x%02X>", $0).utf8)] } : []
      let known = ids[bytes].map { [$0] } ?? (single.count == bytes.count ? single : [])
      if known.isEmpty, let unknown, !(wasUnknown && fusesUnknown) { found.append(unknown) }
      wasUnknown = known.isEmpty
      found += known
    }
    return found
  }

  private static func normalizer(_ step: JSON) throws -> Step {
    switch (step["type"].text, step["pattern"]["String"].text) {
    case ("NFC", _): return { piece, _ in [piece.precomposedStringWithCanonicalMapping] }
    case ("Prepend", _):
      let prefix = step["prepend"].text ?? ""
      return { piece, _ in [piece.isEmpty ? piece : prefix + piece] }
    case ("Replace", let text?):
      let pattern = try literal(text)
      let content = step["content"].text ?? ""
      return { piece, _ in
        [split(piece, pattern).map { $0.isMatch ? content : $0.piece }.joined()]
      }
    default: throw unsupported(step)
    }
  }

  private static func splitter(_ step: JSON) throws -> Step {
    switch (step["type"].text, step["pattern"]["Regex"].text) {
    case ("Split", nil) where step["pattern"]["String"].text == " ":
      return { piece, _ in [piece] }  // Gemma's, which has no spaces any more
    case ("Split", let pattern?) where step["behavior"].text == "Isolated":
      return isolating(try NSRegularExpression(pattern: pattern))
    case ("Digits", _):
      let all = step["individual_digits"].isTrue ? #"\p{N}"# : #"\p{N}+"#
      return isolating(try NSRegularExpression(pattern: all))
    case ("ByteLevel", _):
      let gpt2 = #"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"#
      let splits = isolating(try NSRegularExpression(pattern: gpt2))
      let (isWhole, prefixes) = (step["use_regex"].isFalse, step["add_prefix_space"].isTrue)
      return { piece, isFirst in
        let text = prefixes && piece.utf8.first != 32 ? " " + piece : piece
        return isWhole ? [text] : splits(text, isFirst)
      }
    case ("Metaspace", _):
      let scheme = step["prepend_scheme"].text ?? "always"
      let words = isolating(try NSRegularExpression(pattern: "\(mark)[^\(mark)]*|[^\(mark)]+"))
      let isWhole = step["split"].isFalse
      return { piece, isFirst in
        var text = piece.unicodeScalars.map { $0 == " " ? mark : $0 }
        if (scheme == "always" || scheme == "first" && isFirst) && text.first != mark {
          text.insert(mark, at: 0)
        }
        let marked = String(String.UnicodeScalarView(text))
        return isWhole ? [marked] : words(marked, isFirst)
      }
    default: throw unsupported(step)
    }
  }

  private static func unsupported(_ step: JSON) -> Failure {
    Failure(.program, "the tokenizer has a step '\(step["type"].text ?? "")' that this app lacks")
  }

  private static func literal(_ text: String) throws -> NSRegularExpression {
    try NSRegularExpression(pattern: NSRegularExpression.escapedPattern(for: text))
  }

  private static func isolating(_ pattern: NSRegularExpression) -> Step {
    { piece, _ in split(piece, pattern).map(\.piece) }
  }
}

private struct Pair: Hashable { let left, right: Int }

private let mark: Unicode.Scalar = "\u{2581}"

/// GPT-2's letter for each byte: itself where it can be seen, else one from U+0100 on.
private let letters: [Unicode.Scalar] = {
  let seen = Array(33...126) + Array(161...172) + Array(174...255)
  var next = 255
  return (0...255).map { byte in
    next += seen.contains(byte) ? 0 : 1
    return Unicode.Scalar(UInt32(seen.contains(byte) ? byte : next))!
  }
}()
private let byteOfLetter = Dictionary(uniqueKeysWithValues: zip(letters, UInt8.min...UInt8.max))

/// What matches, and what is between, in their order.
private func split(_ text: String, _ pattern: NSRegularExpression) -> [(
  piece: String, isMatch: Bool
)] {
  let string = text as NSString
  var found: [(piece: String, isMatch: Bool)] = []
  var end = 0
  func add(_ start: Int, _ stop: Int, _ isMatch: Bool) {
    let range = NSRange(location: start, length: stop - start)
    if stop > start { found.append((string.substring(with: range), isMatch)) }
  }
  for match in pattern.matches(in: text, range: NSRange(location: 0, length: string.length)) {
    let stop = match.range.location + match.range.length
    add(end, match.range.location, false)
    add(match.range.location, stop, true)
    end = stop
  }
  add(end, string.length, false)
  return found
}
