// Reads JSON whose strings are compared byte by byte. Foundation's dictionaries compare strings as
// people do, and would take two tokens for one that differ only in how an accent is written.

enum JSON {
  case object([(key: [UInt8], value: JSON)])
  case array([JSON])
  case string([UInt8])
  case number(Double)
  case bool(Bool)
  case null

  init?(_ bytes: [UInt8]) {
    var reader = Reader(bytes: bytes)
    guard let value = reader.value() else { return nil }
    self = value
  }

  subscript(_ name: String) -> JSON {
    members.first { $0.key.elementsEqual(name.utf8) }?.value ?? .null
  }
  var members: [(key: [UInt8], value: JSON)] {
    if case .object(let members) = self { members } else { [] }
  }
  var list: [JSON] { if case .array(let list) = self { list } else { [] } }
  var bytes: [UInt8]? { if case .string(let bytes) = self { bytes } else { nil } }
  var text: String? { bytes.map { String(decoding: $0, as: UTF8.self) } }
  var number: Int? { if case .number(let number) = self { Int(number) } else { nil } }
  var isTrue: Bool { if case .bool(true) = self { true } else { false } }
  var isFalse: Bool { if case .bool(false) = self { true } else { false } }

  /// A step, or those of a sequence of steps, which are its member `name`.
  func flat(_ name: String) -> [JSON] {
    if case .null = self { return [] }
    return self["type"].text == "Sequence" ? self[name].list.flatMap { $0.flat(name) } : [self]
  }
}

private struct Reader {
  let bytes: [UInt8]
  var place = 0

  /// The next byte that is no space; 0 at the end.
  private mutating func next() -> UInt8 {
    while place < bytes.count, [9, 10, 13, 32].contains(bytes[place]) { place += 1 }
    return place < bytes.count ? bytes[place] : 0
  }

  mutating func value() -> JSON? {
    switch next() {
    case UInt8(ascii: "{"):
      var members: [(key: [UInt8], value: JSON)] = []
      while step(to: "}") {
        guard next() == UInt8(ascii: "\""), let key = string(), next() == UInt8(ascii: ":")
        else { return nil }
        place += 1
        guard let value = value() else { return nil }
        members.append((key, value))
      }
      return .object(members)
    case UInt8(ascii: "["):
      var list: [JSON] = []
      while step(to: "]") {
        guard let value = value() else { return nil }
        list.append(value)
      }
      return .array(list)
    case UInt8(ascii: "\""): return string().map(JSON.string)
    default: return word()
    }
  }

  /// Goes over the bracket or comma before an element; false after the last one.
  private mutating func step(to end: Unicode.Scalar) -> Bool {
    if next() != UInt8(ascii: end) { place += 1 }
    guard next() == UInt8(ascii: end) || place >= bytes.count else { return true }
    place += 1
    return false
  }

  private mutating func word() -> JSON? {
    let start = place
    while place < bytes.count, !",]} \n\r\t".utf8.contains(bytes[place]) { place += 1 }
    let text = String(decoding: bytes[start..<place], as: UTF8.self)
    switch text {
    case "true", "false": return .bool(text == "true")
    case "null": return .null
    default: return Double(text).map(JSON.number)
    }
  }

  private mutating func string() -> [UInt8]? {
    var found: [UInt8] = []
    place += 1
    while place < bytes.count {
      let byte = bytes[place]
      place += 1
      if byte == UInt8(ascii: "\"") { return found }
      if byte != UInt8(ascii: "\\") {
        found.append(byte)
      } else {
        guard let scalar = escaped() else { return nil }
        found += Array(String(scalar).utf8)
      }
    }
    return nil
  }

  private mutating func escaped() -> Unicode.Scalar? {
    guard place < bytes.count else { return nil }
    let letter = Unicode.Scalar(bytes[place])
    place += 1
    switch letter {
    case "n": return "\n"
    case "t": return "\t"
    case "r": return "\r"
    case "b": return "\u{8}"
    case "f": return "\u{c}"
    case "u":
      guard let high = code() else { return nil }
      guard (0xd800..<0xdc00).contains(high) else { return Unicode.Scalar(high) }
      place += 2
      guard let low = code(), low >= 0xdc00 else { return nil }
      return Unicode.Scalar(0x10000 + (high - 0xd800) << 10 + (low - 0xdc00))
    default: return letter
    }
  }

  private mutating func code() -> UInt32? {
    guard place + 4 <= bytes.count else { return nil }
    defer { place += 4 }
    return UInt32(String(decoding: bytes[place..<place + 4], as: UTF8.self), radix: 16)
  }
}
