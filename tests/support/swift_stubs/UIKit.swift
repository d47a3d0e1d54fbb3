// As much of UIKit as the sample apps use; see SwiftUI.swift.

@_exported import Foundation

@MainActor public final class UIApplication {
  public static var shared: UIApplication { fatalError() }
  public var isIdleTimerDisabled = false
}
@MainActor public final class UIPasteboard {
  public static var general: UIPasteboard { fatalError() }
  public var string: String?
}
public final class UIImage {
  public func jpegData(compressionQuality: Double) -> Data? { nil }
}
@MainActor open class UIViewController: NSObject {
  public nonisolated override init() {}
}
@MainActor public protocol UINavigationControllerDelegate: AnyObject {}
@MainActor public protocol UIImagePickerControllerDelegate: AnyObject {
  func imagePickerController(
    _ picker: UIImagePickerController,
    didFinishPickingMediaWithInfo info: [UIImagePickerController.InfoKey: Any])
  func imagePickerControllerDidCancel(_ picker: UIImagePickerController)
}
@MainActor public final class UIImagePickerController: UIViewController {
  public struct InfoKey: Hashable, Sendable { public static let originalImage = InfoKey() }
  public enum SourceType: Int, Sendable { case photoLibrary, camera, savedPhotosAlbum }
  public static func isSourceTypeAvailable(_ type: SourceType) -> Bool { false }
  public var sourceType = SourceType.photoLibrary
  public weak var delegate: (any UIImagePickerControllerDelegate & UINavigationControllerDelegate)?
}
