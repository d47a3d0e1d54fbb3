// The screen: what the model is, a button, and what was measured.

import Charts
import SwiftUI
import UIKit

/// What the screen shows.
@MainActor @Observable
final class Session {
  let payload = try? Payload.read(in: Folders().model)
  let results = Folders().documents.appending(path: "results.json")
  private(set) var progress: Double?
  private(set) var report: Report<Measurement>?
  private(set) var verdicts: [Verdict] = []
  private var task: Task<(Report<Measurement>, [Verdict]), Never>?
  private let front = Front()

  /// Measures at once where a tool asks for it, and ends the app, which tells the tool.
  func start() async {
    let arguments = Array(CommandLine.arguments.dropFirst())
    guard let id = Options.runId(arguments) else { return }
    await measure(id, arguments)
    print("etdeploy: run \(id) has ended")
    exit(0)
  }

  func measure(_ id: String = "", _ arguments: [String] = []) async {
    (progress, report, verdicts) = (0, nil, [])
    let isInFront = await front.isReached()
    UIApplication.shared.isIdleTimerDisabled = true
    let (parts, told) = AsyncStream.makeStream(of: Double.self)
    // Not on the main thread, which goes on to draw the screen.
    let task = Task.detached(priority: .userInitiated) {
      defer { told.finish() }
      let folders = Folders()
      var verdicts: [Verdict] = []
      let report = Report(runId: id, in: folders.documents) {
        guard isInFront else { throw Failure.interrupted }
        let options = try Options(arguments)
        let benchmark = try Benchmark(options, in: folders)
        let model = try ExecuTorchModel(
          folders.program(benchmark.payload, options), method: benchmark.payload.method,
          inputs: benchmark.size.inputs, in: folders.model)
        let (found, compared) = try benchmark.run(model) { told.yield($0) }
        verdicts = compared
        return found
      }
      return (report, verdicts)
    }
    self.task = task
    for await part in parts { progress = part }
    (report, verdicts) = await task.value
    (progress, self.task) = (nil, nil)
    UIApplication.shared.isIdleTimerDisabled = false
  }

  /// A measurement that was interrupted is none.
  func follow(_ phase: ScenePhase) {
    if front.hasLeft(phase) { task?.cancel() }
  }
}

struct ContentView: View {
  @Environment(\.scenePhase) private var phase
  @State private var session = Session()

  var body: some View {
    List {
      if let payload = session.payload { ModelSection(payload: payload) }
      Section {
        Button("Run") { Task { await session.measure() } }
          .disabled(session.progress != nil || session.payload == nil)
        if let progress = session.progress {
          ProgressView("Measuring", value: progress)
        }
        ProblemRow(problem: session.report?.error?.message)
      }
      if let found = session.report?.results { LatencySection(found: found) }
      if !session.verdicts.isEmpty {
        Section("Outputs") { ForEach(session.verdicts) { VerdictRow(verdict: $0) } }
      }
    }
    .navigationTitle(session.payload?.name ?? "")
    .toolbar { if session.report != nil { ShareLink(item: session.results) } }
    .onChange(of: phase, initial: true) { session.follow(phase) }
    .task { await session.start() }
  }
}

private struct LatencySection: View {
  let found: Measurement

  var body: some View {
    let sorted = found.samplesMs.sorted()
    Section("Latency") {
      row("Median", percentile(sorted, 50))
      row("90th percentile", percentile(sorted, 90))
      row("Fastest", percentile(sorted, 0))
      row("First inference", found.firstInferenceMs)
      row("Load", found.loadProgramMs + found.loadMethodMs)
      Histogram(samples: sorted)
    }
  }

  private func row(_ name: LocalizedStringKey, _ ms: Double) -> some View {
    LabeledContent(name, value: "\(ms.formatted(.number.precision(.significantDigits(4)))) ms")
  }
}

/// How many of the samples are in each of ten equal parts of their range.
private struct Histogram: View {
  let samples: [Double]

  var body: some View {
    let low = percentile(samples, 0)
    let width = max((percentile(samples, 100) - low) / 10, 1e-6)
    let parts = Dictionary(grouping: samples) { min(9, Int(($0 - low) / width)) }
    Chart(0..<10, id: \.self) { i in
      let start = low + Double(i) * width
      BarMark(
        x: .value("Latency", start..<start + width),
        y: .value("Inferences", parts[i, default: []].count)
      )
      .foregroundStyle(Color.accentColor)
    }
    .frame(minHeight: 160)
    .accessibilityLabel(Text("Histogram of the latencies"))
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
