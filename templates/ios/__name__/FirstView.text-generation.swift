// The first screen: a chat with the model.

import SwiftUI
import UIKit

/// Keeps the model and what was said, off the main thread.
actor Chat {
  private var conversation: Conversation<Program>?

  /// Loads the model once; gives what it can hold.
  func load() throws -> Int {
    if let conversation { return conversation.context }
    let folders = Folders()
    let payload = try Payload.read(in: folders.model)
    _ = useThreads(payload.threads)
    let program = Program(try folders.program(payload, Options([])))
    let loaded = try Conversation(payload.generation, program, in: folders.model)
    conversation = loaded
    return loaded.context
  }

  func answer(
    _ words: String, _ settings: ChatSettings, afterToken: @Sendable (Reply) -> Bool
  ) throws -> Reply? {
    _ = try load()
    return try conversation?.answer(words, settings, afterToken: afterToken)
  }

  func restart() { conversation?.restart() }
}

/// What one side said.
struct Message: Identifiable {
  let id: Int
  let isAnswer: Bool
  var text: String
}

/// What the screen shows.
@MainActor @Observable
final class ChatSession {
  private(set) var messages: [Message] = []
  private(set) var reply: Reply?
  private(set) var used = 0
  private(set) var context: Int?
  private(set) var task: Task<Reply?, any Error>?
  private(set) var problem: String?
  var words = ""
  var settings: ChatSettings?
  private let chat = Chat()

  var answer: String? { messages.last { $0.isAnswer }?.text }
  var canSend: Bool { context != nil && task == nil && !words.isEmpty }

  func load() async {
    guard context == nil else { return }
    do {
      settings = ChatSettings(try Payload.read(in: Folders().model).generation)
      context = try await chat.load()
    } catch { tell(error) }
  }

  func send() async {
    guard canSend, let settings else { return }
    let sent = words
    (words, reply, problem) = ("", nil, nil)
    messages.append(Message(id: messages.count, isAnswer: false, text: sent))
    messages.append(Message(id: messages.count, isAnswer: true, text: ""))
    UIApplication.shared.isIdleTimerDisabled = true
    let (parts, told) = AsyncStream.makeStream(of: Reply.self)
    // Not on the main thread, which goes on to draw the screen.
    let task = Task.detached(priority: .userInitiated) { [chat] in
      defer { told.finish() }
      return try await chat.answer(sent, settings) {
        told.yield($0)
        return !Task.isCancelled
      }
    }
    self.task = task
    for await part in parts { show(part) }
    do {
      if let whole = try await task.value { show(whole) } else { takeBack(sent) }
    } catch {
      tell(error)
      takeBack(sent)
    }
    self.task = nil
    UIApplication.shared.isIdleTimerDisabled = false
  }

  private func show(_ part: Reply) {
    messages[messages.count - 1].text = part.text
    (reply, used) = (part, part.used)
  }

  /// What was not answered can be sent again.
  private func takeBack(_ sent: String) {
    messages.removeLast(2)
    (words, reply) = (sent, nil)
  }

  func copy() { UIPasteboard.general.string = answer }

  func restart() async {
    await chat.restart()
    (messages, reply, used, problem) = ([], nil, 0, nil)
  }

  private func tell(_ error: any Error) {
    problem = (error as? Failure)?.message ?? error.localizedDescription
  }
}

struct FirstView: View {
  @State private var session = ChatSession()
  @State private var changesSettings = false

  var body: some View {
    List {
      ForEach(session.messages) { message in
        Section(message.isAnswer ? "Model" : "You") {
          Text(message.text).textSelection(.enabled)
        }
      }
      Section("Message") {
        TextField("Message", text: $session.words, axis: .vertical)
        if let task = session.task {
          Button("Stop", role: .cancel) { task.cancel() }
        } else {
          Button("Send") { Task { await session.send() } }
            .disabled(!session.canSend)
        }
        ProblemRow(problem: session.problem)
      }
      Section("Conversation") {
        if let context = session.context {
          ProgressView("Context", value: Double(session.used), total: Double(context))
          LabeledContent("Tokens", value: "\(session.used) / \(context)")
        } else if session.problem == nil {
          ProgressView("Loading the model")
        }
        if let reply = session.reply, reply.firstTokenMs > 0 {
          LabeledContent("First token", value: "\(number(reply.firstTokenMs)) ms")
          if let rate = reply.rate {
            LabeledContent("Answer", value: "\(number(rate)) tok/s")
          }
        }
        Button("Copy the answer") { session.copy() }
          .disabled(session.answer == nil)
        Button("Settings") { changesSettings = true }
          .disabled(session.settings == nil)
        Button("New conversation") { Task { await session.restart() } }
          .disabled(session.task != nil)
      }
    }
    .task { await session.load() }
    .sheet(isPresented: $changesSettings) {
      if let settings = session.settings {
        SettingsView(settings: settings) { session.settings = $0 }
      }
    }
  }

  private func number(_ value: Double) -> String {
    value.formatted(.number.precision(.significantDigits(3)))
  }
}

/// How an answer is made, for the next message on.
private struct SettingsView: View {
  @Environment(\.dismiss) private var dismiss
  @State var settings: ChatSettings
  let apply: (ChatSettings) -> Void

  var body: some View {
    NavigationStack {
      List {
        Section("Temperature; 0 takes the most probable token") {
          TextField("Temperature", value: $settings.sampling.temperature, format: .number)
        }
        Section("Top k; 0 for all tokens") {
          TextField("Top k", value: $settings.sampling.topK, format: .number)
        }
        Section("Top p, from 0 to 1") {
          TextField("Top p", value: $settings.sampling.topP, format: .number)
        }
        Section("Most tokens of an answer") {
          TextField("Most tokens", value: $settings.newTokens, format: .number)
        }
        if !settings.isValid {
          ProblemRow(problem: "A number is not in its range.")
        }
      }
      .navigationTitle("Settings")
      .toolbar {
        Button("Apply") {
          apply(settings)
          dismiss()
        }
        .disabled(!settings.isValid)
      }
    }
  }
}
