// How an image becomes the model's input, as in training: resize, crop, normalize. Foundation only.

import Foundation

/// An upright image: red, green, blue and one more byte for each pixel, row by row.
struct Pixels: Sendable {
  let width, height: Int
  let bytes: [UInt8]
}

/// What model.json says of the input.
struct Preprocessing: Decodable, Sendable {
  let width, height: Int
  let resizeWidth, resizeHeight, shortestEdge: Int?
  let filter: String
  let scale: Double
  let mean, std: [Double]

  /// Photos of twice the size that they are resized to lose nothing that would show.
  var leastSide: Int {
    2 * max(shortestEdge ?? 0, resizeWidth ?? 0, resizeHeight ?? 0, width, height)
  }

  /// Values by channel, row and column.
  func apply(_ image: Pixels) -> [Float] {
    let short = min(image.width, image.height)
    func resized(_ size: Int, _ exact: Int?) -> Int {
      shortestEdge.map { $0 * size / short } ?? exact ?? size
    }
    func taps(_ size: Int, _ exact: Int?, _ count: Int) -> Taps {
      let target = resized(size, exact)
      // Rounded down as Python does it, also where the image is smaller than the crop.
      let from = Int((Double(target - count) / 2).rounded(.down))
      return Taps(size, to: target, from: from, count: count, isBicubic: filter == "bicubic")
    }
    let columns = taps(image.width, resizeWidth, width)
    let rows = taps(image.height, resizeHeight, height)
    var values = [Float](repeating: 0, count: 3 * height * width)
    var wide = [UInt8](repeating: 0, count: image.height * width)
    for channel in 0..<3 {
      for y in rows.needed {
        for x in 0..<width {
          wide[y * width + x] = columns.level(x) {
            image.bytes[4 * (y * image.width + $0) + channel]
          }
        }
      }
      for y in 0..<height {
        for x in 0..<width {
          let level = Double(rows.level(y) { wide[$0 * width + x] })
          let value = (level * scale - mean[channel]) / std[channel]
          values[(channel * height + y) * width + x] = Float(value)
        }
      }
    }
    return values
  }
}

/// One direction of a resize, of which `count` pixels from one on are kept. Antialiased as in Pillow:
/// a new pixel is a weighted mean of all old ones that it covers.
private struct Taps {
  private var starts: [Int] = []
  private var weights: [[Double]] = []
  /// The old pixels that count.
  private(set) var needed = 0..<0

  init(_ size: Int, to target: Int, from: Int, count: Int, isBicubic: Bool) {
    let scale = Double(size) / Double(target)
    let stretch = max(scale, 1)
    let support = (isBicubic ? 2 : 1) * stretch
    for at in from..<from + count {
      // Where an image is smaller than the crop, black is around it.
      guard (0..<target).contains(at) else {
        add(0, [])
        continue
      }
      guard size != target else {
        add(at, [1])
        continue
      }
      let center = (Double(at) + 0.5) * scale
      let first = max(0, Int(center - support + 0.5))
      let end = min(size, Int(center + support + 0.5))
      let found = (first..<end).map { i -> Double in
        let distance = abs((Double(i) - center + 0.5) / stretch)
        return isBicubic ? Self.cubic(distance) : max(0, 1 - distance)
      }
      let sum = found.reduce(0, +)
      add(first, found.map { $0 / sum })
    }
  }

  private mutating func add(_ start: Int, _ found: [Double]) {
    starts.append(start)
    weights.append(found)
    guard !found.isEmpty else { return }
    let covered = start..<start + found.count
    needed =
      needed.isEmpty
      ? covered
      : min(needed.lowerBound, covered.lowerBound)..<max(needed.upperBound, covered.upperBound)
  }

  func level(_ index: Int, _ old: (Int) -> UInt8) -> UInt8 {
    var sum = 0.5
    let (start, found) = (starts[index], weights[index])
    for j in found.indices { sum += found[j] * Double(old(start + j)) }
    return UInt8(min(max(sum, 0), 255))
  }

  private static func cubic(_ x: Double) -> Double {
    if x < 1 { return (1.5 * x - 2.5) * x * x + 1 }
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0
  }
}

/// The longer side of a photo that is decoded just large enough; its own if it is smaller.
func decodedSide(_ width: Int, _ height: Int, least: Int) -> Int {
  let (short, long) = (min(width, height), max(width, height))
  return short <= least ? long : (long * least + short - 1) / short
}
