// Chooses the next token: the most probable one, or one drawn by its probability. Foundation only.
//
// Equal logits and seeds give equal tokens on every device: of floating point, only what IEEE 754
// fixes is used. exp() differs between libraries, so weights are powers of two made of square roots.

/// A value for each token of the vocabulary.
typealias Logits = UnsafeBufferPointer<Float>

struct Sampling: Decodable, Sendable {
  var temperature = 0.0
  var topK = 0
  var topP = 1.0
  var seed: UInt64 = 0
  var minP = 0.0
  var repetitionPenalty = 1.0
}

struct Sampler {
  private typealias Candidate = (weight: UInt64, id: Int)
  private let sampling: Sampling
  private var state: UInt64
  private var seen: Set<Int> = []
  /// Powers of 2^-1/2, 2^-1/4, ..., for each of three bytes.
  private let tables: [[Double]]

  init(_ sampling: Sampling) {
    self.sampling = sampling
    state = sampling.seed
    var root = 0.5
    tables = (0..<3).map { _ in
      var table = [Double](repeating: 1, count: 256)
      for bit in [128, 64, 32, 16, 8, 4, 2, 1] {
        root = root.squareRoot()
        for i in 0..<256 where i & bit != 0 { table[i] *= root }
      }
      return table
    }
  }

  /// More tokens of the text.
  mutating func see(_ tokens: [Int64]) {
    if sampling.repetitionPenalty != 1 { seen.formUnion(tokens.map(Int.init)) }
  }

  /// Before anything else, the logits of every token of the text are made smaller (Keskar et al.:
  /// CTRL, 2019).
  mutating func choose(_ logits: Logits) throws -> Int {
    let penalty = sampling.repetitionPenalty
    if penalty == 1 { return try chosen(logits) }
    var penalized = Array(logits)
    for id in seen {
      let logit = Double(penalized[id])
      penalized[id] = Float(logit < 0 ? logit * penalty : logit / penalty)
    }
    return try penalized.withUnsafeBufferPointer { try chosen($0) }
  }

  private mutating func chosen(_ logits: Logits) throws -> Int {
    let best = try mostProbable(logits)
    if sampling.temperature == 0 { return best }
    let most = Double(logits[best])
    var candidates: [Candidate] = []
    for (id, logit) in logits.enumerated() {
      let log2E = 1.4426950408889634
      let weight = power((most - Double(logit)) / sampling.temperature * log2E)
      if weight != 0 { candidates.append((weight, id)) }
    }
    let cuts = sampling.topK != 0 && sampling.topK < candidates.count
    if cuts || sampling.topP < 1 {
      // What is drawn depends on the order, so without a cut it stays that of the ids.
      candidates.sort { $0.weight != $1.weight ? $0.weight > $1.weight : $0.id < $1.id }
    }
    if cuts { candidates.removeLast(candidates.count - sampling.topK) }
    if sampling.topP < 1 {
      let enough = UInt64((sampling.topP * Double(total(candidates))).rounded(.up))
      var sum: UInt64 = 0
      let kept = candidates.firstIndex {
        sum += $0.weight
        return sum >= enough
      }
      candidates = Array(candidates[...(kept ?? candidates.count - 1)])
    }
    let least = UInt64((sampling.minP * Double(1 << 40)).rounded(.up))
    return draw(least == 0 ? candidates : candidates.filter { $0.weight >= least })
  }

  private func mostProbable(_ logits: Logits) throws -> Int {
    var best = 0
    var most = -Float.infinity
    for (id, logit) in logits.enumerated() {
      if logit.isNaN { throw Failure(.run, "a logit is NaN") }
      if logit > most { (best, most) = (id, logit) }
    }
    guard most.isFinite else { throw Failure(.run, "the largest logit is \(most)") }
    return best
  }

  /// 2^-x as a whole number, of which 2^0 is 2^40; 0 where that is less than 1.
  private func power(_ x: Double) -> UInt64 {
    guard x < 40 else { return 0 }
    let places = UInt64(x * Double(1 << 24))
    let part =
      tables[0][Int(places >> 16 & 255)] * tables[1][Int(places >> 8 & 255)]
      * tables[2][Int(places & 255)]
    return UInt64(part * Double(1 << 40)) >> (places >> 24)
  }

  private func total(_ candidates: [Candidate]) -> UInt64 {
    candidates.reduce(0) { $0 + $1.weight }
  }

  private mutating func draw(_ candidates: [Candidate]) -> Int {
    var left = next().multipliedFullWidth(by: total(candidates)).high
    for candidate in candidates {
      if left < candidate.weight { return candidate.id }
      left -= candidate.weight
    }
    return candidates[candidates.count - 1].id  // not reached
  }

  /// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
  private mutating func next() -> UInt64 {
    state &+= 0x9e37_79b9_7f4a_7c15
    var z = state
    z = (z ^ z >> 30) &* 0xbf58_476d_1ce4_e5b9
    z = (z ^ z >> 27) &* 0x94d0_49bb_1331_11eb
    return z ^ z >> 31
  }
}
