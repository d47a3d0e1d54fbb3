// The screen: what the model is, a button, and what was measured.

import Charts
import SwiftUI
import UIKit

/// What the screen shows.
@MainActor @Observable
final class Session {
  private(set) var payload: Payload?
  private(set) var progress: Double?
  private(set) var found: Measurement?
  private(set) var verdicts: [Verdict] = []
  private(set) var problem: String?
  private let folders = Folders()
  var results: URL { folders.documents.appending(path: "results.json") }

  /// Measures at once where a tool asks for it, and ends the app, which tells the tool.
  func start() async {
    let arguments = Array(CommandLine.arguments.dropFirst())
    payload = try? Payload.read(in: folders.model)
    guard let id = Options.runId(arguments) else { return }
    await measure(id, arguments)
    print("etdeploy: run \(id) has ended")
    exit(0)
  }

  func measure(_ id: String = "", _ arguments: [String] = []) async {
    (progress, found, verdicts) = (0, nil, [])
    UIApplication.shared.isIdleTimerDisabled = true
    let folders = folders
    let (report, verdicts) = await Task.detached(priority: .userInitiated) {
      var verdicts: [Verdict] = []
      let report = Report(runId: id) {
        let (found, compared) = try measured(folders, arguments) { progress in
          Task { @MainActor in self.tell(progress) }
        }
        verdicts = compared
        return found
      }
      return (report, verdicts)
    }.value
    UIApplication.shared.isIdleTimerDisabled = false
    (progress, found, self.verdicts) = (nil, report.results.value, verdicts)
    problem = report.error.value?.message
    do { try report.write(to: folders.documents) } catch { problem = error.localizedDescription }
  }

  private func tell(_ progress: Double) {
    if self.progress != nil { self.progress = progress }
  }
}

/// Loads the model and measures it, not on the main thread.
private func measured(
  _ folders: Folders, _ arguments: [String], told: (Double) -> Void
) throws -> (Measurement, [Verdict]) {
  let options = try Options(arguments)
  let payload = try Payload.read(in: folders.model)
  let benchmark = try Benchmark(payload, options)
  let model = ExecuTorchModel(
    try folders.program(payload, options), method: payload.method, inputs: benchmark.size.inputs,
    in: folders.model)
  let outputs = options.flag("outputs") ? folders.documents.appending(path: "outputs") : nil
  return try benchmark.run(model, files: folders.model, outputs: outputs, told: told)
}

struct ContentView: View {
  @State private var session = Session()

  var body: some View {
    NavigationStack {
      List {
        if let payload = session.payload { ModelSection(payload: payload) }
        Section {
          Button("Run") { Task { await session.measure() } }
            .disabled(session.progress != nil || session.payload == nil)
          if let progress = session.progress {
            ProgressView(value: progress) { Text("Measuring") }
          }
          if let problem = session.problem {
            Label(problem, systemImage: "exclamationmark.triangle").foregroundStyle(.red)
          }
        }
        if let found = session.found { LatencySection(found: found) }
        if !session.verdicts.isEmpty {
          Section("Outputs") { ForEach(session.verdicts) { VerdictRow(verdict: $0) } }
        }
      }
      .navigationTitle(session.payload?.name ?? "")
      .toolbar { if session.found != nil { ShareLink(item: session.results) } }
    }
    .task { await session.start() }
  }
}

private struct LatencySection: View {
  let found: Measurement

  var body: some View {
    Section("Latency") {
      row("Median", percentile(found.samplesMs, 50))
      row("90th percentile", percentile(found.samplesMs, 90))
      row("Fastest", percentile(found.samplesMs, 0))
      row("First inference", found.firstInferenceMs)
      row("Load", found.loadProgramMs + found.loadMethodMs)
      Chart(Bar.histogram(found.samplesMs)) { bar in
        BarMark(x: .value("Latency", bar.label), y: .value("Inferences", bar.count))
      }
      .frame(minHeight: 160)
      .accessibilityLabel(Text("Histogram of the latencies"))
    }
  }

  private func row(_ name: LocalizedStringKey, _ ms: Double) -> some View {
    LabeledContent(name, value: "\(ms.formatted(.number.precision(.significantDigits(4)))) ms")
  }
}

private struct Bar: Identifiable {
  let id, count: Int
  let label: String

  static func histogram(_ samples: [Double], bars: Int = 10) -> [Bar] {
    guard let low = samples.min(), let high = samples.max() else { return [] }
    let width = max((high - low) / Double(bars), 1e-6)
    let places = samples.map { min(bars - 1, Int(($0 - low) / width)) }
    return (0..<bars).map { i in
      let middle = low + (Double(i) + 0.5) * width
      return Bar(
        id: i, count: places.count { $0 == i },
        label: middle.formatted(.number.precision(.significantDigits(3))))
    }
  }
}

private struct VerdictRow: View {
  let verdict: Verdict

  var body: some View {
    LabeledContent {
      Text(verdict.difference?.formatted(.number.precision(.significantDigits(2))) ?? "–")
    } label: {
      Label(verdict.name, systemImage: verdict.isRight ? "checkmark.circle" : "xmark.circle")
        .foregroundStyle(verdict.isRight ? .green : .red)
    }
    .accessibilityElement(children: .combine)
    .accessibilityValue(verdict.isRight ? Text("as expected") : Text("not as expected"))
  }
}
