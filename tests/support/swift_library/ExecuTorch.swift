// As much of ExecuTorch's Swift API as libraries use, and it runs: every program in it is that of
// TwoInputs in runtime_export, for which a file has to be there.

import Foundation

public enum DataType: Int8, Sendable {
  case byte, char, short, int, long, half, float, double, complexHalf, complexFloat, complexDouble
  case bool, qInt8, quInt8, qInt32, bFloat16, quInt4x2, quInt2x4, bits1x8, bits2x4, bits4x2, bits8
  case bits16, float8_e5m2, float8_e4m3fn, float8_e5m2fnuz, float8_e4m3fnuz
  case uInt16, uInt32, uInt64, undefined
}
public enum ShapeDynamism: UInt8, Sendable { case `static`, dynamicBound, dynamicUnbound }
public enum ModuleLoadMode: Int, Sendable { case file, mmap, mmapUseMlock, mmapUseMlockIgnoreErrors }
public func size(ofDataType type: DataType) -> Int { type == .float ? 4 : 8 }

public final class AnyTensor: NSObject {
  public let dataType: DataType
  public let shape: [Int]
  public var dimensionOrder: [Int] { Array(shape.indices) }
  private let data: Data

  public init(
    data: Data, shape: [Int], strides: [Int] = [], dimensionOrder: [Int] = [], dataType: DataType,
    shapeDynamism: ShapeDynamism = .dynamicBound
  ) {
    (self.data, self.shape, self.dataType) = (data, shape, dataType)
  }

  public static func empty(
    shape: [Int], strides: [Int] = [], dataType: DataType,
    shapeDynamism: ShapeDynamism = .dynamicBound
  ) -> AnyTensor { AnyTensor(data: Data(), shape: shape, dataType: dataType) }

  public func bytes(_ handler: (UnsafeRawPointer, Int, DataType) -> Void) {
    data.withUnsafeBytes { handler($0.baseAddress!, shape.reduce(1, *), dataType) }
  }

  fileprivate func values<T>(_ type: T.Type) -> [T] {
    data.withUnsafeBytes { raw in
      (0..<shape.reduce(1, *)).map {
        raw.loadUnaligned(fromByteOffset: $0 * MemoryLayout<T>.stride, as: type)
      }
    }
  }

  fileprivate static func of<T>(_ values: [T], _ shape: [Int], _ type: DataType) -> Value {
    Value(AnyTensor(data: values.withUnsafeBytes { Data($0) }, shape: shape, dataType: type))
  }
}

public protocol ValueConvertible {}
extension AnyTensor: ValueConvertible {}
public final class Value: NSObject, ValueConvertible {
  public let anyTensor: AnyTensor?
  public let integer: Int
  public override init() { (anyTensor, integer) = (nil, 0) }
  public init(_ value: AnyTensor) { (anyTensor, integer) = (value, 0) }
  public init(_ value: Int) { (anyTensor, integer) = (nil, value) }
  public init(_ value: Double) { (anyTensor, integer) = (nil, 0) }
  public init(_ value: Bool) { (anyTensor, integer) = (nil, 0) }
  public var boolean: Bool { false }
  public var double: Double { 0 }
}

public final class TensorMetadata: NSObject {
  public var shape: [Int] { [] }
  public var dataType: DataType { .float }
  public var isMemoryPlanned: Bool { true }
}
public final class MethodMetadata: NSObject {
  public var outputTensorMetadata: [Int: TensorMetadata] { [:] }
}

open class Module: NSObject {
  private let path: String
  public init(filePath: String, loadMode: ModuleLoadMode) { path = filePath }

  public func load() throws {
    let file = try Data(contentsOf: URL(fileURLWithPath: path))
    if file.dropFirst(4).prefix(2) != Data("ET".utf8) {
      throw NSError(domain: "ExecuTorch", code: 0x23)
    }
  }
  public func load(_ method: String) throws {
    if method != "forward" { throw NSError(domain: "ExecuTorch", code: 0x12) }
  }
  public func methodMetadata(_ method: String) throws -> MethodMetadata { MethodMetadata() }
  public func setOutput(_ value: ValueConvertible, for method: String, at index: Int) throws {}

  public func execute(_ method: String, _ inputs: [ValueConvertible]) throws -> [Value] {
    let tensors = inputs.compactMap { ($0 as? Value)?.anyTensor }
    let (x, index) = (tensors[0], tensors[1].values(Int64.self))
    let (rows, columns, all) = (x.shape[0], x.shape[1], x.values(Float.self))
    let picked = (0..<rows).flatMap { row in index.map { all[row * columns + Int($0)] } }
    return [
      AnyTensor.of(picked, [rows, index.count], .float),
      AnyTensor.of(index.map { $0 + 1 }, [index.count], .long),
      Value(rows),
    ]
  }
}
