import SwiftUI

/// What the model is.
struct ModelSection: View {
  let payload: Payload

  var body: some View {
    Section("Model") {
      LabeledContent("Size", value: payload.programBytes.formatted(.byteCount(style: .file)))
      LabeledContent("Backends", value: payload.backends.joined(separator: ", "))
      LabeledContent("Quantization", value: payload.quantization)
      LabeledContent("ExecuTorch", value: payload.executorchVersion)
    }
  }
}

/// What went wrong.
struct ProblemRow: View {
  let problem: String?

  var body: some View {
    if let problem {
      Label(problem, systemImage: "exclamationmark.triangle").foregroundStyle(.red)
    }
  }
}
