// As much of XCTest as golden tests use: what is wrong is printed.

open class XCTestCase {
  public init() {}
}

public func XCTAssertTrue(_ value: Bool, _ message: String = "") {
  if !value { print("wrong: \(message)") }
}
public func XCTAssertFalse(_ value: Bool, _ message: String = "") { XCTAssertTrue(!value, message) }
public func XCTAssertEqual<T: Equatable>(_ a: T, _ b: T, _ message: String = "") {
  XCTAssertTrue(a == b, "\(message): \(a) is not \(b)")
}

public struct XCTSkip: Error {
  public init(_ message: String? = nil) {}
}
