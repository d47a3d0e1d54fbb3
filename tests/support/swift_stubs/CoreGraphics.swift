// As much of Core Graphics as the sample apps use; see SwiftUI.swift. The names of Core Foundation
// are Foundation's classes here.

@_exported import Foundation

public typealias CFString = NSString
public typealias CFData = NSData
public typealias CFDictionary = NSDictionary

public final class CGImage {
  public var width: Int { fatalError() }
  public var height: Int { fatalError() }
}
public final class CGColorSpace {
  public static var sRGB: CFString { fatalError() }
  public init?(name: CFString) { nil }
}
public enum CGImageAlphaInfo: UInt32, Sendable { case none, premultipliedLast, noneSkipLast = 5 }
public final class CGContext {
  public init?(
    data: UnsafeMutableRawPointer?, width: Int, height: Int, bitsPerComponent: Int,
    bytesPerRow: Int, space: CGColorSpace, bitmapInfo: UInt32
  ) { nil }
  public func draw(_ image: CGImage, in rect: CGRect) {}
}
