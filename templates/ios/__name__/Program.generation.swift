// The only file that calls ExecuTorch, through Program.h.

import Foundation

final class Program: LanguageModel {
  private let native: OpaquePointer

  init(_ path: URL) { native = program_open(path.path) }

  deinit { program_close(native) }

  func loadProgram() throws { try require(program_load(native), .program, "the program") }

  func load(_ method: String) throws {
    try require(program_load_method(native, method), .load, "method \(method)")
  }

  func logits(_ method: String, _ tokens: ArraySlice<Int64>, at position: Int) throws -> Logits {
    var start: UnsafePointer<Float>?
    var count = 0
    let error = tokens.withUnsafeBufferPointer {
      program_take(
        native, method, $0.baseAddress!, Int32($0.count), Int64(position), &start, &count)
    }
    try require(error, .run, "method \(method) at position \(position)")
    return Logits(start: start, count: count)
  }

  private func require(_ error: Int32, _ kind: Failure.Kind, _ what: String) throws {
    if error != 0 {
      throw Failure(
        isOfMemory(Int(error)) ? .memory : kind, "\(what): ExecuTorch's error \(error)")
    }
  }
}
