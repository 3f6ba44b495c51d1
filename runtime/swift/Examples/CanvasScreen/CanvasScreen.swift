// A screen that shows an answer while it resolves: add this file to an application that links EdgeKit.
//
// EdgeKit takes and gives token ids. `encode` (prompt to ids, chat template included) and `decode` (ids to text) come
// from a tokenizer library that reads the bundle's tokenizer.json, such as swift-transformers.
import EdgeKit
import SwiftUI

@MainActor
@Observable
final class CanvasModel {
  private(set) var canvas = CanvasText()
  private(set) var message: String?
  private(set) var isRunning = false
  @ObservationIgnored private var session: Session?
  @ObservationIgnored private var task: Task<Void, Never>?
  /// Counts prompts: what an earlier one still says is not shown.
  @ObservationIgnored private var run = 0

  private let path: String
  private let memoryBytes: UInt64?
  private let encode: (String) -> [Int]

  init(path: String, memoryBytes: UInt64?, encode: @escaping (String) -> [Int]) {
    self.path = path
    self.memoryBytes = memoryBytes
    self.encode = encode
  }

  func start(_ prompt: String) {
    stop()
    canvas = CanvasText()
    message = nil
    isRunning = true
    run += 1
    let own = run
    let ids = encode(prompt)
    task = Task {
      do {
        let session = try await open()
        for try await event in session.generate(ids) where own == run {
          withAnimation(.easeOut(duration: 0.15)) { canvas.fold(event) }
        }
      } catch {
        if own == run { message = error.localizedDescription }
      }
      if own == run { isRunning = false }
    }
  }

  /// The computation ends at the next step boundary.
  func stop() { task?.cancel() }

  private func open() async throws -> Session {
    if let session { return session }
    let opened = try await Session(path: path, options: SessionOptions(memoryBytes: memoryBytes))
    session = opened
    return opened
  }
}

struct CanvasScreen: View {
  @State private var model: CanvasModel
  @State private var prompt = ""
  private let decode: ([Int]) -> String

  init(
    path: String, memoryBytes: UInt64?, encode: @escaping (String) -> [Int], decode: @escaping ([Int]) -> String
  ) {
    _model = State(initialValue: CanvasModel(path: path, memoryBytes: memoryBytes, encode: encode))
    self.decode = decode
  }

  var body: some View {
    VStack(alignment: .leading, spacing: 12) {
      ScrollView {
        Text(styled)
          .font(.body.monospaced())
          .frame(maxWidth: .infinity, alignment: .leading)
          .textSelection(.enabled)
      }
      if let message = model.message {
        Text(message).font(.footnote).foregroundStyle(.red)
      } else if model.isRunning {
        Text("step \(model.canvas.step)").font(.footnote).foregroundStyle(.secondary)
      } else if let statistics = model.canvas.statistics {
        Text("\(statistics.committedTokens) tokens in \(statistics.denoisingSteps) steps")
          .font(.footnote)
          .foregroundStyle(.secondary)
      }
      HStack {
        TextField("Prompt", text: $prompt)
          .textFieldStyle(.roundedBorder)
          .onSubmit { model.start(prompt) }
        if model.isRunning {
          Button("Stop") { model.stop() }
        } else {
          Button("Go") { model.start(prompt) }
            .disabled(prompt.isEmpty)
        }
      }
    }
    .padding()
  }

  /// Committed text in full, accepted tokens lighter, guesses faint.
  private var styled: AttributedString {
    var text = AttributedString(decode(model.canvas.answer))
    for cell in model.canvas.cells where cell.state != .committed {
      var piece = AttributedString(decode([cell.token]))
      piece.foregroundColor = cell.state == .accepted ? Color.secondary : Color.gray.opacity(0.4)
      text += piece
    }
    return text
  }
}
