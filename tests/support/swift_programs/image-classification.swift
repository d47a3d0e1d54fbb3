// Labels images: MODEL, and WIDTH HEIGHT FILE of each on stdin. The model's scores are means by
// channel; the last input is left beside the image's file.

import Foundation

let words = CommandLine.arguments
let folder = URL(filePath: words[1], directoryHint: .isDirectory)
let payload = try Payload.read(in: folder)
nonisolated(unsafe) var input: [Float] = []
let classifier = try Classifier(payload.image, in: folder) { values, shape in
  print("shape", shape)
  input = values
  let size = values.count / 3
  let means = (0..<3).map { channel in
    4 * values[channel * size..<(channel + 1) * size].reduce(0, +) / Float(size)
  }
  let bytes = means.withUnsafeBytes { Data($0) }
  return Output(kind: "Tensor", dtype: "float32", shape: [1, 3], bytes: bytes)
}
while let line = readLine() {
  let given = line.split(separator: " ").map(String.init)
  let file = URL(filePath: given[2])
  let image = Pixels(
    width: Int(given[0])!, height: Int(given[1])!, bytes: Array(try Data(contentsOf: file)))
  do {
    let labels = try classifier.labels(image, count: 2)
    print("labels", labels.map { "\($0.name)=\($0.score)" }.joined(separator: " "))
  } catch let failure as Failure { print(failure.kind, failure.message) }
  try input.withUnsafeBytes { Data($0) }.write(to: file.appendingPathExtension("input"))
}
for (width, height) in [(8160, 6120), (6120, 8160), (120, 90)] {
  print("decoded", decodedSide(width, height, least: payload.image.preprocessing.leastSide))
}
