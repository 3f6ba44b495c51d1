import EdgeKit
import SwiftUI

/// The one screen: shows the model's state, and tells it what was pressed.
struct ChatScreen: View {
  let model: ChatModel
  @State private var address = ChatModel.defaultAddress
  @State private var budget = Budget.none
  @State private var prompt = ""

  var body: some View {
    VStack(alignment: .leading, spacing: 12) {
      download
      Picker("Memory", selection: $budget) {
        ForEach(Budget.allCases) { Text($0.title).tag($0) }
      }
      .disabled(model.work != .none)
      conversation
      Text(told).font(.footnote).foregroundStyle(model.message == nil ? Color.secondary : Color.red)
      figures
      question
      measurement
    }
    .padding()
  }

  private var download: some View {
    VStack {
      HStack {
        TextField("Address of a bundle", text: $address)
          .textFieldStyle(.roundedBorder)
          .keyboardType(.URL)
          .textInputAutocapitalization(.never)
          .autocorrectionDisabled()
          .disabled(model.work != .none)
        WorkButton(model: model, work: .fetching, begins: "Download", ends: "Pause") { model.fetch(address) }
      }
      if model.work == .fetching {
        ProgressView(value: model.totalBytes == 0 ? nil : Double(model.hereBytes) / Double(model.totalBytes))
      }
    }
  }

  private var conversation: some View {
    ScrollView {
      LazyVStack(alignment: .leading, spacing: 12) {
        ForEach(Array(model.turns.enumerated()), id: \.offset) { _, turn in
          Text(turn.content).fontWeight(turn.role == .user ? .bold : .regular).textSelection(.enabled)
        }
        if let asked = model.question {
          Text(asked).fontWeight(.bold)
          if let canvas = model.canvas { CanvasView(canvas: canvas) }
        }
      }
      .frame(maxWidth: .infinity, alignment: .leading)
    }
    .defaultScrollAnchor(.bottom)
  }

  private var figures: some View {
    HStack {
      TimelineView(.periodic(from: .now, by: 0.5)) { _ in
        if let bytes = ProcessMemory.bytes { Text("\(bytes / 1_000_000) MB in memory") }
      }
      Spacer()
      if let rate = model.tokensPerSecond { Text("\(rate, specifier: "%.1f") tokens/s") }
    }
    .font(.footnote.monospacedDigit())
  }

  private var question: some View {
    HStack {
      TextField("Question", text: $prompt, axis: .vertical)
        .textFieldStyle(.roundedBorder)
        .lineLimit(1...4)
      WorkButton(model: model, work: .answering, begins: "Ask", ends: "Stop") {
        model.ask(prompt, budget: budget)
        prompt = ""
      }
      .disabled(!model.hasBundle || prompt.isEmpty && model.work == .none)
    }
  }

  private var measurement: some View {
    HStack {
      Button("New chat") { model.forget() }
        .disabled(model.work != .none || model.turns.isEmpty)
      Spacer()
      WorkButton(model: model, work: .measuring, begins: "Measure", ends: "Stop") { model.measure(budget: budget) }
        .disabled(!model.hasBundle)
      if let report = model.report, model.work == .none {
        ShareLink("Export benchmark", item: report)
      }
    }
  }

  private var told: String {
    if let message = model.message { return message }
    switch model.work {
    case .none: return model.hasBundle ? "Ready" : "No bundle is here yet"
    case .fetching: return "\(model.hereBytes / 1_000_000) of \(model.totalBytes / 1_000_000) MB are here"
    case .answering:
      let step = model.canvas?.step ?? 0
      return step > 0 ? "Step \(step) of this canvas" : "Reading weights and prompt"
    case .measuring: return "Measuring: leave the device alone for a while"
    }
  }
}

/// A button that begins a piece of work, and ends it while it runs.
private struct WorkButton: View {
  let model: ChatModel
  let work: ChatModel.Work
  let begins: String
  let ends: String
  let begin: () -> Void

  var body: some View {
    Button(model.work == work ? ends : begins) { if model.work == work { model.stop() } else { begin() } }
      .disabled(model.work != work && model.work != .none)
  }
}
