// The system's camera, and whether the app may use it.

import AVFoundation
import SwiftUI
import UIKit

enum Camera {
  /// Asks a person once; throws where there is no camera, or it is refused.
  @MainActor static func allow() async throws {
    guard UIImagePickerController.isSourceTypeAvailable(.camera) else {
      throw Failure(.usage, "This device has no camera. Choose a photo instead.")
    }
    guard await AVCaptureDevice.requestAccess(for: .video) else {
      throw Failure(
        .usage,
        "This app may not use the camera. Allow it in Settings, Privacy & Security, Camera, or "
          + "choose a photo.")
    }
  }
}

/// Takes one photo.
struct CameraView: UIViewControllerRepresentable {
  /// Gets the photo as a file; nil if a person cancelled, or there is no room for it.
  let taken: @MainActor (Data?) -> Void

  func makeUIViewController(context: Context) -> UIImagePickerController {
    let picker = UIImagePickerController()
    picker.sourceType = .camera
    picker.delegate = context.coordinator
    return picker
  }

  func updateUIViewController(_ picker: UIImagePickerController, context: Context) {}

  func makeCoordinator() -> Coordinator { Coordinator(taken: taken) }

  @MainActor
  final class Coordinator: NSObject, UIImagePickerControllerDelegate, UINavigationControllerDelegate
  {
    private let taken: @MainActor (Data?) -> Void

    init(taken: @escaping @MainActor (Data?) -> Void) { self.taken = taken }

    func imagePickerController(
      _ picker: UIImagePickerController,
      didFinishPickingMediaWithInfo info: [UIImagePickerController.InfoKey: Any]
    ) {
      let photo = info[.originalImage] as? UIImage
      taken(photo?.jpegData(compressionQuality: 0.95))
    }

    func imagePickerControllerDidCancel(_ picker: UIImagePickerController) { taken(nil) }
  }
}
