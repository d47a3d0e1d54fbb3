// As much of AVFoundation as the sample apps use; see SwiftUI.swift.

@_exported import Foundation

public struct AVMediaType: Sendable { public static let video = AVMediaType() }
public final class AVCaptureDevice {
  public static func requestAccess(for type: AVMediaType) async -> Bool { false }
}
public final class AVAudioApplication {
  public static func requestRecordPermission() async -> Bool { false }
}
public final class AVAudioSession {
  public struct Category: Sendable { public static let record = Category() }
  public struct Mode: Sendable { public static let measurement = Mode() }
  public static func sharedInstance() -> AVAudioSession { fatalError() }
  public func setCategory(_ category: Category, mode: Mode) throws {}
  public func setActive(_ active: Bool) throws {}
}
public final class AVAudioFormat {
  public var sampleRate: Double { fatalError() }
  public var channelCount: UInt32 { fatalError() }
}
public final class AVAudioTime {}
public final class AVAudioPCMBuffer {
  public var frameLength: UInt32 { fatalError() }
  public var floatChannelData: UnsafePointer<UnsafeMutablePointer<Float>>? { nil }
}
public final class AVAudioInputNode {
  public func outputFormat(forBus bus: Int) -> AVAudioFormat { fatalError() }
  public func installTap(
    onBus bus: Int, bufferSize: UInt32, format: AVAudioFormat?,
    block: @escaping (AVAudioPCMBuffer, AVAudioTime) -> Void
  ) {}
  public func removeTap(onBus bus: Int) {}
}
public final class AVAudioEngine {
  public init() {}
  public var inputNode: AVAudioInputNode { fatalError() }
  public func prepare() {}
  public func start() throws {}
  public func stop() {}
}
