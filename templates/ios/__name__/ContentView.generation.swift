// The screen: what the model is, a prompt, the text that comes, and how fast.

import SwiftUI
import UIKit

/// What the screen shows.
@MainActor @Observable
final class Session {
  let payload = try? Payload.read(in: Folders().model)
  let results = Folders().documents.appending(path: "results.json")
  var prompt = "Why is the sky blue?"
  private(set) var text = ""
  private(set) var report: Report<Measurement>?
  private(set) var task: Task<Report<Measurement>, Never>?
  /// Whether the app was behind others meanwhile, which makes times longer.
  private(set) var left = false
  private var measures = false
  private let front = Front()

  /// Generates at once where a tool asks for it, and ends the app, which tells the tool.
  func start() async {
    if payload?.generation.tokenizer == nil { prompt = "1 2 3" }  // ids of tokens
    let arguments = Array(CommandLine.arguments.dropFirst())
    guard let id = Options.runId(arguments) else { return }
    await generate(id, arguments)
    print("etdeploy: run \(id) has ended")
    exit(0)
  }

  func generate(_ id: String = "", _ arguments: [String] = []) async {
    (text, report, left, measures) = ("", nil, false, !id.isEmpty)
    let isInFront = await front.isReached()
    UIApplication.shared.isIdleTimerDisabled = true
    let (texts, told) = AsyncStream.makeStream(of: String.self)
    // Not on the main thread, which goes on to draw the screen.
    let task = Task.detached(priority: .userInitiated) { [prompt] in
      defer { told.finish() }
      let folders = Folders()
      return Report(runId: id, in: folders.documents) {
        guard isInFront else { throw Failure.interrupted }
        let options = try Options(arguments)
        let payload = try Payload.read(in: folders.model)
        let speech = try Speech(payload.generation, in: folders.model)
        let request = try Request(options, payload.generation, in: folders) {
          try speech.ids(prompt)
        }
        let generator = Generator(request, Program(try folders.program(payload, options))) {
          told.yield(speech.text($0.tokenIds))
          return !Task.isCancelled
        }
        let found = try generator.run(payload, options)
        if Task.isCancelled && !id.isEmpty { throw Failure.interrupted }
        return found
      }
    }
    self.task = task
    for await text in texts { self.text = text }
    report = await task.value
    self.task = nil
    UIApplication.shared.isIdleTimerDisabled = false
  }

  /// A measurement that was interrupted is none. A person's text goes on when the app is back.
  func follow(_ phase: ScenePhase) {
    guard front.hasLeft(phase) else { return }
    left = true
    if measures { task?.cancel() }
  }
}

struct ContentView: View {
  @Environment(\.scenePhase) private var phase
  @State private var session = Session()

  var body: some View {
    List {
      if let payload = session.payload { ModelSection(payload: payload) }
      Section("Prompt") {
        TextField("Prompt", text: $session.prompt, axis: .vertical)
        if let task = session.task {
          Button("Stop", role: .cancel) { task.cancel() }
        } else {
          Button("Run") { Task { await session.generate() } }
            .disabled(session.payload == nil || session.prompt.isEmpty)
        }
        ProblemRow(problem: session.report?.error?.message)
      }
      if !session.text.isEmpty {
        Section("Answer") { Text(session.text).textSelection(.enabled) }
      }
      if !session.left, let found = session.report?.results,
        let run = found.generation.runs.last
      {
        SpeedSection(run: run, load: found.loadMs)
      }
    }
    .navigationTitle(session.payload?.name ?? "")
    .toolbar { if session.report != nil { ShareLink(item: session.results) } }
    .onChange(of: phase, initial: true) { session.follow(phase) }
    .task { await session.start() }
  }
}

private struct SpeedSection: View {
  let run: Generated
  let load: Double

  var body: some View {
    Section("Speed") {
      LabeledContent("Load", value: "\(number(load)) ms")
      LabeledContent("First token", value: "\(number(run.firstTokenMs)) ms")
      LabeledContent("Prompt", value: "\(number(run.prefillRate)) tok/s")
      LabeledContent("Answer", value: "\(number(run.decodeRate)) tok/s")
    }
  }

  private func number(_ value: Double) -> String {
    value.formatted(.number.precision(.significantDigits(3)))
  }
}
