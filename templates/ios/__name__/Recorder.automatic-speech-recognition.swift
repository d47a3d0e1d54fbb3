// The system's microphone, and whether the app may use it.

import AVFoundation

@MainActor
final class Recorder {
  private let engine = AVAudioEngine()

  /// Asks a person once; throws where the microphone is refused.
  static func allow() async throws {
    guard await AVAudioApplication.requestRecordPermission() else {
      throw Failure(
        .usage,
        "This app may not use the microphone. Allow it in Settings, Privacy & Security, "
          + "Microphone.")
    }
  }

  /// Begins to record; the sound has the rate that the microphone gives.
  func start(seconds: Double) throws -> Sound {
    let session = AVAudioSession.sharedInstance()
    try session.setCategory(.record, mode: .measurement)
    try session.setActive(true)
    let format = engine.inputNode.outputFormat(forBus: 0)
    guard format.sampleRate > 0, format.channelCount > 0 else {
      throw Failure(.run, "The microphone is not available; another app may use it.")
    }
    let sound = Sound(rate: format.sampleRate, seconds: seconds)
    // Called on a thread of the system's.
    engine.inputNode.installTap(onBus: 0, bufferSize: 4096, format: format) {
      @Sendable buffer, _ in
      guard let channel = buffer.floatChannelData?[0] else { return }
      sound.add(UnsafeBufferPointer(start: channel, count: Int(buffer.frameLength)))
    }
    engine.prepare()
    try engine.start()
    return sound
  }

  func stop() {
    engine.inputNode.removeTap(onBus: 0)
    engine.stop()
    try? AVAudioSession.sharedInstance().setActive(false)
  }
}
