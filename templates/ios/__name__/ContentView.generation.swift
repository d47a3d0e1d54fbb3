// The screen: what the model is, a prompt, the text that comes, and how fast.

import SwiftUI
import UIKit

/// What the screen shows.
@MainActor @Observable
final class Session {
  var prompt = "Why is the sky blue?"
  private(set) var payload: Payload?
  private(set) var text = ""
  private(set) var found: Measurement?
  private(set) var problem: String?
  private(set) var task: Task<(Report<Measurement>, String), Never>?
  private let folders = Folders()
  var results: URL { folders.documents.appending(path: "results.json") }

  /// Generates at once where a tool asks for it, and ends the app, which tells the tool.
  func start() async {
    let arguments = Array(CommandLine.arguments.dropFirst())
    payload = try? Payload.read(in: folders.model)
    let language = try? Payload.read(LanguagePayload.self, in: folders.model).generation
    if language?.tokenizer == nil { prompt = "1 2 3" }  // ids of tokens
    guard let id = Options.runId(arguments) else { return }
    await generate(id, arguments)
    print("etdeploy: run \(id) has ended")
    exit(0)
  }

  func generate(_ id: String = "", _ arguments: [String] = []) async {
    (text, found, problem) = ("", nil, nil)
    UIApplication.shared.isIdleTimerDisabled = true
    let (folders, prompt) = (folders, prompt)
    let task = Task.detached(priority: .userInitiated) {
      var whole = ""
      let report = Report(runId: id) {
        try generated(folders, arguments, prompt) { text in
          whole = text
          Task { @MainActor in self.text = text }
        }
      }
      return (report, whole)
    }
    self.task = task
    let (report, whole) = await task.value
    self.task = nil
    UIApplication.shared.isIdleTimerDisabled = false
    (text, found, problem) = (whole, report.results.value, report.error.value?.message)
    do { try report.write(to: folders.documents) } catch { problem = error.localizedDescription }
  }
}

/// Loads the model and lets it write, not on the main thread; a task that is cancelled stops it.
private func generated(
  _ folders: Folders, _ arguments: [String], _ prompt: String, told: @escaping (String) -> Void
) throws -> Measurement {
  let options = try Options(arguments)
  let payload = try Payload.read(in: folders.model)
  let language = try Payload.read(LanguagePayload.self, in: folders.model).generation
  let speech = try Speech(language, in: folders.model)
  let request =
    try options.values["request"].map {
      try Request(contentsOf: URL(filePath: $0, relativeTo: folders.documents))
    } ?? Request(language, prompt: try speech.ids(prompt))
  let program = Program(try folders.program(payload, options))
  let generator = Generator(request, program) { text in
    told(speech.text(text.tokenIds))
    return !Task.isCancelled
  }
  return try generator.run(
    payload, threads: options.number("threads", from: 0, or: payload.threads))
}

struct ContentView: View {
  @State private var session = Session()

  var body: some View {
    NavigationStack {
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
          if let problem = session.problem {
            Label(problem, systemImage: "exclamationmark.triangle").foregroundStyle(.red)
          }
        }
        if !session.text.isEmpty {
          Section("Answer") { Text(session.text).textSelection(.enabled) }
        }
        if let run = session.found?.generation.runs.last {
          SpeedSection(run: run, load: session.found?.loadMs ?? 0)
        }
      }
      .navigationTitle(session.payload?.name ?? "")
      .toolbar { if session.found != nil { ShareLink(item: session.results) } }
    }
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
