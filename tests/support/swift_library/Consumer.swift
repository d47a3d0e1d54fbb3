// An app's use of two libraries, as its engineer would write it.

import Foundation
import PairLibrary
import WordsLibrary

func fails(_ work: @Sendable () async throws -> Void) async {
  do {
    try await work()
    print("nothing failed")
  } catch {
    print("\(error)")
  }
}

@main
struct Consumer {
  static func main() async throws {
    let model = Pair()
    let index: [Int64] = [5, 0, 3]
    let output = try await model.run(
      image: [1, 2, 3, 4, 5, 6], imageShape: [1, 6], class_: index)
    let (rows, picked): (Int, [Float]) = (output.rows, output.picked)
    print(rows, picked, output.pickedShape, output.next)
    await fails {
      _ = try await model.run(
        image: [Float](repeating: 0, count: 11), imageShape: [2, 6], class_: index)
    }
    await fails { _ = try await model.run(image: [], imageShape: [9, 6], class_: index) }
    await fails { try await Pair(program: URL(filePath: "/none.pte")).load() }
    await fails {
      let task = Task {
        withUnsafeCurrentTask { $0?.cancel() }
        return try await model.run(image: picked, imageShape: [1, 3], class_: [0, 0, 0])
      }
      _ = try await task.value
    }
    let sums = try await withThrowingTaskGroup(of: Float.self) { group in
      for i in 0..<4 {
        group.addTask {
          let image = [Float](repeating: Float(i), count: 6)
          return try await model.run(image: image, imageShape: [1, 6], class_: [1, 1, 1]).picked[0]
        }
      }
      var sum: Float = 0
      for try await value in group { sum += value }
      return sum
    }
    print("sum", sums)
    await model.close()
    await fails { try await model.load() }
    try await speak()
  }

  static func speak() async throws {
    let model = Words()
    var ids: [Int] = []
    for try await id in model.generateIds(Array(0..<8), newTokens: 16) { ids.append(id) }
    print("ids", ids)
    var first: [Int] = []
    for try await id in model.generateIds(Array(0..<8), newTokens: 16) {
      first.append(id)
      if first.count == 3 { break }
    }
    print("first", first == Array(ids.prefix(3)))
    var text = ""
    for try await piece in model.generate("blue sky", newTokens: 6) { text += piece }
    print("text", text.isEmpty ? "none" : "some")
    let warm = Sampling(temperature: 8, topK: 20, seed: 3)
    var drawn: [Int] = []
    for try await id in model.generateIds(Array(0..<8), newTokens: 16, sampling: warm) {
      drawn.append(id)
    }
    print("drawn", drawn != ids && drawn.count == 16)
    await fails { for try await _ in model.generateIds(Array(0..<30), newTokens: 4) {} }
    await fails { for try await _ in model.generateIds([99], newTokens: 4) {} }
    await model.close()
    await fails { for try await _ in model.generateIds([1], newTokens: 4) {} }
  }
}
