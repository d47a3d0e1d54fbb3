// Recorded sound, at the rate that the model takes. Foundation only.

import Foundation

/// What a microphone has given until now; its thread adds, others read.
final class Sound: @unchecked Sendable {
  let rate: Double
  private let most: Int
  private let lock = NSLock()
  private var samples: [Float] = []
  private var last = ContinuousClock.now

  /// At `rate` samples for each second, for at most so many seconds.
  init(rate: Double, seconds: Double) {
    self.rate = rate
    most = Int((rate * seconds).rounded(.up))
  }

  func add(_ more: UnsafeBufferPointer<Float>) {
    guard !more.isEmpty else { return }
    lock.withLock {
      samples.append(contentsOf: more.prefix(most - samples.count))
      last = .now
    }
  }

  /// How much of the time that the model takes is over, from 0 to 1.
  var progress: Double { lock.withLock { Double(samples.count) / Double(max(most, 1)) } }
  var isFull: Bool { lock.withLock { samples.count >= most } }
  /// Since the microphone gave anything.
  var silence: Duration { lock.withLock { .now - last } }

  /// All samples, from -1 to 1; throws where there is none but zeros, which is what a microphone
  /// gives that is switched off.
  func heard() throws -> [Float] {
    let found = lock.withLock { samples }
    guard found.contains(where: { $0 != 0 }) else {
      throw Failure(
        .run, "The microphone gave no sound. Is it switched off, or used by another app?")
    }
    return found
  }
}

/// The same sound with another number of samples for each second: interpolated by a windowed sinc,
/// which first takes out what the new rate cannot have.
func resampled(_ samples: [Float], from old: Double, to new: Double) -> [Float] {
  guard old != new, !samples.isEmpty else { return samples }
  // Zero crossings of the sinc on each side, and a little room for its slope.
  let (crossings, rolloff) = (16.0, 0.95)
  let cutoff = min(old, new) / old * rolloff
  let reach = crossings / cutoff
  let count = Int((Double(samples.count) * new / old).rounded(.up))
  return (0..<count).map { i in
    let center = Double(i) * old / new
    let first = max(0, Int((center - reach).rounded(.up)))
    let end = min(samples.count - 1, Int((center + reach).rounded(.down)))
    var sum = 0.0
    for j in stride(from: first, through: end, by: 1) {
      let distance = Double(j) - center
      let x = distance * cutoff * .pi
      let window = 0.5 + 0.5 * cos(.pi * distance / reach)
      sum += Double(samples[j]) * (x == 0 ? 1 : sin(x) / x) * window
    }
    return Float(sum * cutoff)
  }
}
