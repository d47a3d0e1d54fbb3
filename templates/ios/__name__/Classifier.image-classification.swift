// From a photo to labels: what goes into the model, and what its outputs say. Foundation only.

import Foundation

/// What model.json says of the model's labels.
struct ImageFacts: Decodable, Sendable {
  let preprocessing: Preprocessing
  /// A file with their names.
  let labels: String
  /// Whether an image may have several.
  let several: Bool
}

/// A label with its probability.
struct ScoredLabel: Identifiable, Sendable {
  let id: Int
  let name: String
  let score: Double
}

struct Classifier {
  private let facts: ImageFacts
  private let names: [String]
  /// Runs the model on values of a shape.
  private let model: ([Float], [Int]) throws -> Output

  init(_ facts: ImageFacts, in folder: URL, model: @escaping ([Float], [Int]) throws -> Output)
    throws
  {
    self.facts = facts
    self.model = model
    names = try Payload.list(facts.labels, in: folder)
  }

  /// The most probable labels, the first of them first.
  func labels(_ image: Pixels, count: Int) throws -> [ScoredLabel] {
    let how = facts.preprocessing
    let output = try model(how.apply(image), [1, 3, how.height, how.width])
    guard let logits = output.floats, logits.count == names.count else {
      throw Failure(.program, "The model's output is not a number for each of its labels.")
    }
    guard !logits.contains(where: \.isNaN) else { throw Failure(.run, "A score is not a number.") }
    let scores = facts.several ? logits.map(Self.sigmoid) : Self.softmax(logits)
    let best = scores.indices.sorted {
      scores[$0] != scores[$1] ? scores[$0] > scores[$1] : $0 < $1
    }
    return best.prefix(count).map { ScoredLabel(id: $0, name: names[$0], score: scores[$0]) }
  }

  private static func sigmoid(_ logit: Float) -> Double { 1 / (1 + exp(-Double(logit))) }

  private static func softmax(_ logits: [Float]) -> [Double] {
    let most = logits.max() ?? 0
    let powers = logits.map { exp(Double($0 - most)) }
    let sum = powers.reduce(0, +)
    return powers.map { $0 / sum }
  }
}
