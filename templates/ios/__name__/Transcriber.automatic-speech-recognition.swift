// Writes down speech with a CTC model: each piece of time has a letter, or none. Foundation only.

import Foundation

/// What model.json says of speech.
struct SpeechFacts: Decodable, Sendable {
  struct Preprocessing: Decodable, Sendable {
    /// As many as the program takes.
    let samples: Int
    /// Samples for each second.
    let rate: Int
    let normalize: Bool
    let epsilon: Double

    var seconds: Double { Double(samples) / Double(rate) }
  }
  let preprocessing: Preprocessing
  /// A file with the text of each id.
  let vocabulary: String
  /// The id that separates letters, and that between words.
  let blank: Int
  let space: Int?
  /// Ids without a text.
  let silent: [Int]
}

struct Transcriber {
  private let facts: SpeechFacts
  private let letters: [String]
  /// Runs the model on values of a shape.
  private let model: ([Float], [Int]) throws -> Output

  init(_ facts: SpeechFacts, in folder: URL, model: @escaping ([Float], [Int]) throws -> Output)
    throws
  {
    self.facts = facts
    self.model = model
    letters = try Payload.list(facts.vocabulary, in: folder)
  }

  /// The text of samples from -1 to 1; what is missing to the model's length is silence.
  func text(_ samples: [Float], rate: Double) throws -> String {
    let how = facts.preprocessing
    let taken = resampled(samples, from: rate, to: Double(how.rate)).prefix(how.samples)
    let values = normalized(Array(taken))
    let silence = [Float](repeating: 0, count: how.samples - values.count)
    let output = try model(values + silence, [1, how.samples])
    guard let logits = output.floats, output.shape?.last == letters.count else {
      throw Failure(.program, "The model's output is not a number for each letter.")
    }
    return text(logits)
  }

  private func normalized(_ samples: [Float]) -> [Float] {
    guard facts.preprocessing.normalize, !samples.isEmpty else { return samples }
    let count = Double(samples.count)
    let mean = samples.reduce(0) { $0 + Double($1) } / count
    let variance = samples.reduce(0) { $0 + (Double($1) - mean) * (Double($1) - mean) } / count
    let deviation = (variance + facts.preprocessing.epsilon).squareRoot()
    return samples.map { Float((Double($0) - mean) / deviation) }
  }

  /// Of equal ids in a row one counts.
  private func text(_ logits: [Float]) -> String {
    var text = ""
    var previous = facts.blank
    for start in stride(from: 0, to: logits.count, by: letters.count) {
      var best = 0
      for id in letters.indices where logits[start + id] > logits[start + best] { best = id }
      if best != previous, best != facts.blank, !facts.silent.contains(best) {
        text += best == facts.space ? " " : letters[best]
      }
      previous = best
    }
    return text.trimmingCharacters(in: .whitespaces)
  }
}
