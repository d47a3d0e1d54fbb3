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
