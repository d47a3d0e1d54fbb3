// As much of ExecuTorch's Swift API as the sample apps use, with the signatures of its release 1.5;
// see SwiftUI.swift.

import Foundation

public enum DataType: Int8, Sendable {
  case byte, char, short, int, long, half, float, double, complexHalf, complexFloat, complexDouble
  case bool, qInt8, quInt8, qInt32, bFloat16, quInt4x2, quInt2x4, bits1x8, bits2x4, bits4x2, bits8
  case bits16, float8_e5m2, float8_e4m3fn, float8_e5m2fnuz, float8_e4m3fnuz
  case uInt16, uInt32, uInt64, undefined
}
public enum ShapeDynamism: UInt8, Sendable { case `static`, dynamicBound, dynamicUnbound }
public enum ModuleLoadMode: Int, Sendable { case file, mmap, mmapUseMlock, mmapUseMlockIgnoreErrors }
public enum ModuleVerification: UInt8, Sendable { case minimal, internalConsistency }
public func size(ofDataType: DataType) -> Int { fatalError() }
public func elementCount(ofShape shape: [Int]) -> Int { fatalError() }

public final class AnyTensor: NSObject {
  public var dataType: DataType { fatalError() }
  public var shape: [Int] { fatalError() }
  public var strides: [Int] { fatalError() }
  public var dimensionOrder: [Int] { fatalError() }
  public func bytes(_ handler: (UnsafeRawPointer, Int, DataType) -> Void) {}
  public convenience init(
    data: Data, shape: [Int], strides: [Int] = [], dimensionOrder: [Int] = [], dataType: DataType,
    shapeDynamism: ShapeDynamism = .dynamicBound
  ) { fatalError() }
  public static func empty(
    shape: [Int], strides: [Int] = [], dataType: DataType,
    shapeDynamism: ShapeDynamism = .dynamicBound
  ) -> AnyTensor { fatalError() }
}

public protocol ValueConvertible {}
extension AnyTensor: ValueConvertible {}
public final class Value: NSObject, ValueConvertible {
  public override init() {}
  public init(_ value: AnyTensor) {}
  public init(_ value: Int) {}
  public init(_ value: Double) {}
  public init(_ value: Bool) {}
  public var anyTensor: AnyTensor? { nil }
  public var isBoolean: Bool { false }
  public var isInteger: Bool { false }
  public var isDouble: Bool { false }
  public var boolean: Bool { false }
  public var integer: Int { 0 }
  public var double: Double { 0 }
}

public final class TensorMetadata: NSObject {
  public var shape: [Int] { fatalError() }
  public var dimensionOrder: [Int] { fatalError() }
  public var dataType: DataType { fatalError() }
  public var isMemoryPlanned: Bool { fatalError() }
}
public final class MethodMetadata: NSObject {
  public var inputTensorMetadata: [Int: TensorMetadata] { fatalError() }
  public var outputTensorMetadata: [Int: TensorMetadata] { fatalError() }
}
open class Module: NSObject {
  public init(filePath: String, loadMode: ModuleLoadMode) {}
  public func load() throws {}
  public func load(_ method: String) throws {}
  public func methodMetadata(_ method: String) throws -> MethodMetadata { fatalError() }
  public func execute(_ method: String, _ inputs: [ValueConvertible]) throws -> [Value] { [] }
  public func setOutput(_ value: ValueConvertible, for method: String, at index: Int) throws {}
}
