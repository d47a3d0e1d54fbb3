// The first screen: a photo, and what it may show.

import PhotosUI
import SwiftUI

/// Keeps the model between photos, off the main thread.
actor Labeller {
  private var classifier: Classifier?

  func labels(_ data: Data, count: Int) throws -> (Photo, [ScoredLabel]) {
    let folders = Folders()
    let payload = try Payload.read(in: folders.model)
    let photo = try Photo(data, least: payload.image.preprocessing.leastSide)
    let loaded = try classifier ?? load(payload, folders)
    classifier = loaded
    return (photo, try loaded.labels(photo.pixels, count: count))
  }

  private func load(_ payload: Payload, _ folders: Folders) throws -> Classifier {
    let model = try ExecuTorchModel.loaded(payload, in: folders)
    return try Classifier(payload.image, in: folders.model, model: model.output)
  }
}

/// What the screen shows.
@MainActor @Observable
final class PhotoSession {
  private static let shown = 5
  private(set) var photo: Photo?
  private(set) var labels: [ScoredLabel] = []
  private(set) var problem: String?
  private(set) var isBusy = false
  var chosen: PhotosPickerItem?
  var takesPhoto = false
  private let labeller = Labeller()

  /// Labels the photo that a person chose.
  func choose() async {
    guard let item = chosen else { return }
    chosen = nil
    await label { try await item.loadTransferable(type: Data.self) }
  }

  func openCamera() async {
    problem = nil
    do {
      try await Camera.allow()
      takesPhoto = true
    } catch { tell(error) }
  }

  func take(_ data: Data?) async {
    takesPhoto = false
    if let data { await label { data } }
  }

  private func label(_ read: () async throws -> Data?) async {
    (photo, labels, problem, isBusy) = (nil, [], nil, true)
    do {
      guard let data = try await read() else { throw Failure(.usage, "The photo is gone.") }
      (photo, labels) = try await labeller.labels(data, count: Self.shown)
    } catch { tell(error) }
    isBusy = false
  }

  private func tell(_ error: any Error) {
    problem = (error as? Failure)?.message ?? error.localizedDescription
  }
}

struct FirstView: View {
  @State private var session = PhotoSession()

  var body: some View {
    List {
      Section {
        PhotosPicker("Choose a photo", selection: $session.chosen, matching: .images)
          .disabled(session.isBusy)
        Button("Take a photo") { Task { await session.openCamera() } }
          .disabled(session.isBusy)
        if session.isBusy { ProgressView("Looking at the photo") }
        ProblemRow(problem: session.problem)
      }
      if let photo = session.photo {
        Section {
          Image(decorative: photo.image, scale: 1)
            .resizable()
            .scaledToFit()
            .frame(maxHeight: 300)
            .accessibilityLabel(Text("The photo"))
        }
      }
      if !session.labels.isEmpty {
        Section("What it may show") {
          ForEach(session.labels) { label in
            LabeledContent(label.name) {
              Text(label.score, format: .percent.precision(.fractionLength(1)))
            }
          }
        }
      }
    }
    .onChange(of: session.chosen) { Task { await session.choose() } }
    .fullScreenCover(isPresented: $session.takesPhoto) {
      CameraView { data in Task { await session.take(data) } }
        .ignoresSafeArea()
    }
  }
}
