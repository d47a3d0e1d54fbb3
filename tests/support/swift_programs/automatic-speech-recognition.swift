// Writes down speech: MODEL RATE SOUND LOGITS, of which the latter is what the model gives; or
// `resample OLD NEW` with samples on stdin; or what a microphone gives: `sound`.

import Foundation

func floats(_ data: Data) -> [Float] {
  data.withUnsafeBytes { raw in
    (0..<raw.count / 4).map { raw.loadUnaligned(fromByteOffset: 4 * $0, as: Float.self) }
  }
}

func sound(_ samples: [Float], seconds: Double) throws -> Sound {
  let sound = Sound(rate: 10, seconds: seconds)
  for part in stride(from: 0, to: samples.count, by: 4) {
    Array(samples[part..<min(part + 4, samples.count)]).withUnsafeBufferPointer { sound.add($0) }
  }
  return sound
}

let words = Array(CommandLine.arguments.dropFirst())
do {
  switch words[0] {
  case "resample":
    let given = (readLine() ?? "").split(separator: " ").map { Float($0)! }
    let made = resampled(given, from: Double(words[1])!, to: Double(words[2])!)
    print(made.map(\.description).joined(separator: " "))
  case "sound":
    let half = try sound([0.5, 0, 0.25, 0, 0, 0], seconds: 1.2)
    print(half.progress, half.isFull, half.silence < .seconds(1), try half.heard())
    let whole = try sound([Float](repeating: 0.5, count: 15), seconds: 1.2)
    print(whole.progress, whole.isFull, try whole.heard().count)
    print(try sound([0, 0, 0], seconds: 1).heard())
  default:
    let folder = URL(filePath: words[0], directoryHint: .isDirectory)
    let payload = try Payload.read(in: folder)
    let logits = try Data(contentsOf: URL(filePath: words[3]))
    let transcriber = try Transcriber(payload.speech, in: folder) { values, shape in
      print("input", shape, values.map(\.description).joined(separator: " "))
      let width = Int(words[4])!
      return Output(
        kind: "Tensor", dtype: "float32", shape: [1, logits.count / 4 / width, width], bytes: logits)
    }
    let samples = floats(try Data(contentsOf: URL(filePath: words[2])))
    print("text '\(try transcriber.text(samples, rate: Double(words[1])!))'")
  }
} catch let failure as Failure {
  print(failure.kind, failure.message)
}
