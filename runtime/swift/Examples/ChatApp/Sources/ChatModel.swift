import EdgeKit
import Foundation
import Observation

/// What the application does: brings a bundle to a folder, answers with it, measures it. Views show its properties.
///
/// One piece of work runs at a time, and while it does others are not begun. `stop` ends any of them.
@MainActor
@Observable
final class ChatModel {
  enum Work { case none, fetching, answering, measuring }

  /// Where the bundle comes from, unless something else is typed.
  static let defaultAddress = "https://models.example/llada"

  private(set) var work = Work.none
  /// Whether the folder has a bundle.
  private(set) var hasBundle: Bool
  /// Of the bundle that arrives; the total is 0 while it is not known.
  private(set) var hereBytes: UInt64 = 0
  private(set) var totalBytes: UInt64 = 0
  /// Questions and answers that are over.
  private(set) var turns: [Message] = []
  /// The question that is being answered, and how far its answer has resolved.
  private(set) var question: String?
  private(set) var canvas: CanvasText?
  /// Of the last answer, encoding of its prompt included.
  private(set) var tokensPerSecond: Double?
  /// The report of the last measurement.
  private(set) var report: URL?
  /// How the last work ended where it did not end well: one line.
  private(set) var message: String?

  private static let folder = URL.applicationSupportDirectory.appending(path: "bundle")
  private static let reportFile = URL.documentsDirectory.appending(path: "edgekit-bench.json")
  /// Tokens that a memory budget has room for in a pass: of families without a causal prefix, prompt and answer.
  private static let longestPass = 512
  private static let measuredTokens = 64

  @ObservationIgnored private var task: Task<Void, Never>?
  @ObservationIgnored private var session: Session?
  @ObservationIgnored private var openedWith = Budget.none
  @ObservationIgnored private var openedBytes: UInt64 = 0
  /// The application is seen again: a session that gave memory back meanwhile is opened anew.
  @ObservationIgnored private var hasReturned = false
  /// One in the process, made when the application starts: tasks of an earlier process report to it.
  private let transport: Result<BackgroundTransport, any Error>

  init() {
    transport = Result {
      try FileManager.default.createDirectory(at: .applicationSupportDirectory, withIntermediateDirectories: true)
      return try BackgroundTransport(identifier: "org.example.edgekit-chat.bundle")
    }
    hasBundle = EdgeKit.Bundle.exists(at: Self.folder.path)
    report = FileManager.default.fileExists(atPath: Self.reportFile.path) ? Self.reportFile : nil
  }

  /// Brings the bundle at `address`, and goes on with what an earlier fetch of it has left. `stop` pauses it; what the system
  /// is at then still comes.
  func fetch(_ address: String) {
    begin(.fetching) {
      let transport = try self.transport.get()
      let options = FetchOptions(sources: [address.trimmingCharacters(in: .whitespaces)])
      let fetch = try BundleFetch(folder: Self.folder.path, options: options, for: transport)
      try await fetch.run(over: transport) { progress in
        Task { @MainActor in self.show(progress) }
      }
      await self.close()  // a session reads the bundle that is replaced now
      try await fetch.finish()
      transport.clear()
      try Self.keepOutOfBackups()
      self.turns = []
      self.hasBundle = true
    }
  }

  /// Answers a question, behind what was said before.
  func ask(_ question: String, budget: Budget) {
    begin(.answering) {
      self.question = question
      self.canvas = nil
      self.tokensPerSecond = nil
      defer { self.question = nil }
      let session = try await self.opened(budget)
      let tokenizer = try session.tokenizer()
      var canvas = CanvasText(tokenizer)
      let prompt = try tokenizer.prompt(self.turns + [Message(.user, question)])
      var text = ""
      defer { self.keep(question, text) }
      for try await event in session.generate(prompt) {
        try canvas.fold(event)
        self.canvas = canvas
        if case .text(let part) = event { text += part }
        self.tokensPerSecond = canvas.statistics?.tokensPerSecond
      }
    }
  }

  /// Measures the bundle as `edgekit bench` does; the report is a file then.
  func measure(budget: Budget) {
    begin(.measuring) {
      await self.close()  // the measured session has the budget for itself
      let prompt = try Tokenizer(bundle: Self.folder.path).prompt([Message(.user, "Why is the sky blue?")])
      let data = try await Benchmark.run(
        bundle: Self.folder.path, prompt: prompt, session: self.options(budget),
        settings: GenerationSettings(maxNewTokens: Self.measuredTokens), repetitions: 3)
      try (data + Data("\n".utf8)).write(to: Self.reportFile, options: .atomic)
      self.report = Self.reportFile
    }
  }

  /// Ends what is under way: a fetch goes on later, an answer keeps what it has.
  func stop() { task?.cancel() }

  /// Forgets the conversation.
  func forget() {
    guard work == .none else { return }
    turns = []
    tokensPerSecond = nil
    message = nil
  }

  /// The application is seen again. What the system says of memory meanwhile, sessions hear by themselves.
  func onReturn() { hasReturned = true }

  /// Takes what the system wants to be called when it has told of all downloads.
  func handleEvents(completionHandler: @escaping () -> Void) {
    guard case .success(let transport) = transport else { return completionHandler() }
    let handler = EventsHandler(call: completionHandler)
    transport.handleEvents { handler.call() }
  }

  private func begin(_ work: Work, _ body: @escaping @MainActor () async throws -> Void) {
    guard self.work == .none else { return }
    self.work = work
    message = nil
    task = Task {
      do {
        try await body()
      } catch is CancellationError {
        // It was stopped, which is no failure.
      } catch {
        message = error.localizedDescription
      }
      self.work = .none
    }
  }

  private func show(_ progress: FetchProgress) {
    hereBytes = progress.wholeBytes + progress.arrivedBytes
    totalBytes = progress.totalBytes
  }

  /// An answer that was stopped is kept as far as it is final; one that has nothing is no turn.
  private func keep(_ question: String, _ text: String) {
    if !text.isEmpty { turns += [Message(.user, question), Message(.assistant, text)] }
    canvas = nil
  }

  private func opened(_ budget: Budget) async throws -> Session {
    if let session, openedWith == budget {
      let gaveBack = try await session.statistics().pinnedBytes < openedBytes
      if !(gaveBack && hasReturned) { return session }
    }
    await close()
    hasReturned = false
    let opened = try await Session(path: Self.folder.path, options: options(budget))
    openedWith = budget
    openedBytes = try await opened.statistics().pinnedBytes
    session = opened
    return opened
  }

  private static func keepOutOfBackups() throws {
    var url = folder
    var values = URLResourceValues()
    values.isExcludedFromBackup = true
    try url.setResourceValues(values)
  }

  private func close() async {
    await session?.close()
    session = nil
  }

  private func options(_ budget: Budget) -> SessionOptions {
    SessionOptions(memoryBytes: budget.bytes, canvas: Self.longestPass)
  }
}

/// UIKit's is not marked as sendable; the transport calls it on the main thread.
private struct EventsHandler: @unchecked Sendable {
  let call: () -> Void
}
