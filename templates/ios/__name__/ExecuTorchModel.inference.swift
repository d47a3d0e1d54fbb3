// The only file that imports ExecuTorch.

import ExecuTorch
import Foundation

private let dataTypes: [String: DataType] = [
  "uint8": .byte, "int8": .char, "int16": .short, "int32": .int, "int64": .long,
  "uint16": .uInt16, "uint32": .uInt32, "uint64": .uInt64, "bool": .bool,
  "float16": .half, "bfloat16": .bFloat16, "float32": .float, "float64": .double,
]

/// A method of a program, with its inputs.
final class ExecuTorchModel: Model {
  private let module: Module
  private let method: String
  private let inputs: [Value]
  private var results: [Value] = []

  /// `inputs` are values, and files in `folder`.
  init(_ program: URL, method: String, inputs: [Payload.Value], in folder: URL) throws {
    module = Module(filePath: program.path, loadMode: .mmap)
    self.method = method
    self.inputs = try inputs.map { try value($0, in: folder) }
  }

  func loadProgram() throws { try reporting(.program) { try module.load() } }

  func loadMethod() throws {
    try reporting(.load) { try module.load(method) }
    let metadata = try module.methodMetadata(method)
    for (i, output) in metadata.outputTensorMetadata where !output.isMemoryPlanned {
      // Refused for an output that is an input or a constant: that one has memory.
      try? module.setOutput(
        AnyTensor.empty(shape: output.shape, dataType: output.dataType), for: method, at: i)
    }
  }

  func infer() throws { results = try reporting(.run) { try module.execute(method, inputs) } }

  func outputs() throws -> [Output] {
    try results.map { value in
      if let tensor = value.anyTensor { return try output(tensor) }
      if value.isBoolean { return Output(kind: "Bool", value: value.boolean ? 1 : 0) }
      if value.isInteger { return Output(kind: "Int", value: Double(value.integer)) }
      return value.isDouble ? Output(kind: "Double", value: value.double) : Output(kind: "None")
    }
  }

  private func output(_ tensor: AnyTensor) throws -> Output {
    guard tensor.dimensionOrder == Array(tensor.shape.indices) else {
      throw Failure(.run, "an output of \(method) has its dimensions in another order in memory")
    }
    var bytes = Data()
    tensor.bytes { pointer, count, type in
      bytes = Data(bytes: pointer, count: count * size(ofDataType: type))
    }
    let dtype = dataTypes.first { $0.value == tensor.dataType }?.key
    return Output(kind: "Tensor", dtype: dtype, shape: tensor.shape, bytes: bytes)
  }

  private func reporting<T>(_ kind: Failure.Kind, _ work: () throws -> T) throws -> T {
    do {
      return try work()
    } catch {
      let code = (error as NSError).code
      throw Failure(
        isOfMemory(code) ? .memory : kind,
        "method \(method): \(error.localizedDescription) (ExecuTorch's error \(code))")
    }
  }
}

private func value(_ input: Payload.Value, in folder: URL) throws -> Value {
  let number = input.value?.double ?? 0
  switch input.kind {
  case "Tensor": return Value(try tensor(input, in: folder))
  case "Int": return Value(Int(exactly: number) ?? 0)
  case "Double": return Value(number)
  case "Bool": return Value(number != 0)
  default: return Value()
  }
}

private func tensor(_ input: Payload.Value, in folder: URL) throws -> AnyTensor {
  guard let path = input.path, let shape = input.shape, let type = dataTypes[input.dtype ?? ""]
  else { throw Failure(.program, "an input of type \(input.dtype ?? "none") is not supported") }
  var data = try Data(contentsOf: folder.appending(path: path))
  guard data.count == elementCount(ofShape: shape) * size(ofDataType: type) else {
    throw Failure(.program, "\(path) has \(data.count) bytes, which is not what its shape says")
  }
  data.append(Data(count: 64))  // kernels may read a little more than they use
  return AnyTensor(data: data, shape: shape, dataType: type)
}
