// The first screen: records speech, and shows what was said.

import SwiftUI
import UIKit

/// Keeps the model between recordings, off the main thread.
actor Writer {
  private var transcriber: Transcriber?

  func text(_ samples: [Float], rate: Double) throws -> String {
    let folders = Folders()
    let payload = try Payload.read(in: folders.model)
    let loaded = try transcriber ?? load(payload, folders)
    transcriber = loaded
    return try loaded.text(samples, rate: rate)
  }

  private func load(_ payload: Payload, _ folders: Folders) throws -> Transcriber {
    let model = try ExecuTorchModel.loaded(payload, in: folders)
    return try Transcriber(payload.speech, in: folders.model, model: model.output)
  }
}

/// What the screen shows.
@MainActor @Observable
final class SpeechSession {
  /// How long a microphone may give nothing.
  private static let patience = Duration.seconds(2)
  private(set) var progress: Double?
  private(set) var isWriting = false
  private(set) var text: String?
  private(set) var problem: String?
  private let recorder = Recorder()
  private let writer = Writer()
  private var isStopped = false

  func record() async {
    (progress, text, problem, isStopped) = (0, nil, nil, false)
    UIApplication.shared.isIdleTimerDisabled = true
    do {
      let sound = try await listen()
      (progress, isWriting) = (nil, true)
      text = try await writer.text(sound.heard(), rate: sound.rate)
    } catch {
      problem = (error as? Failure)?.message ?? error.localizedDescription
    }
    (progress, isWriting) = (nil, false)
    UIApplication.shared.isIdleTimerDisabled = false
  }

  /// Until a person stops it, there is as much as the model takes, or nothing more comes.
  private func listen() async throws -> Sound {
    try await Recorder.allow()
    let speech = try Payload.read(in: Folders().model).speech
    defer { recorder.stop() }
    let sound = try recorder.start(seconds: speech.preprocessing.seconds)
    while !isStopped, !sound.isFull, sound.silence < Self.patience {
      try await Task.sleep(for: .milliseconds(100))
      progress = sound.progress
    }
    return sound
  }

  func stop() { isStopped = true }
}

struct FirstView: View {
  @Environment(\.scenePhase) private var phase
  @State private var session = SpeechSession()

  var body: some View {
    List {
      Section {
        if let progress = session.progress {
          Button("Stop") { session.stop() }
          ProgressView("Listening", value: progress)
        } else {
          Button("Record") { Task { await session.record() } }
            .disabled(session.isWriting)
        }
        if session.isWriting { ProgressView("Writing") }
        ProblemRow(problem: session.problem)
      }
      if let text = session.text {
        Section("What was said") {
          if text.isEmpty { Text("No words") } else { Text(text).textSelection(.enabled) }
        }
      }
    }
    // iOS gives no sound to an app behind others.
    .onChange(of: phase) { if phase == .background { session.stop() } }
  }
}
