import CEdgeKit
import Foundation

/// A bundle on its way from servers to a folder. Every run of the weights and every file is compared with its digest when its
/// last byte is here, and comes again where it is damaged. A bundle that is in the folder stays until `finish`; what has not
/// changed is copied from it. What has arrived lies in FOLDER.arriving, and a later fetch goes on with it.
///
///     let fetch = try BundleFetch(folder: path, options: FetchOptions(sources: ["https://host/llada"]))
///     try await fetch.run(over: ForegroundTransport()) { print($0.wholeBytes, $0.totalBytes) }
///     try await fetch.finish()
///
/// `pause` ends `run`, and another call of that goes on. A fetch that failed is to be released, and made anew to go on. The core
/// writes and compares in its calls, a run at a time, which keeps one of the threads of all tasks for that long.
public actor BundleFetch {
  /// The core's calls come one after the other; nobody has it when it is closed.
  private nonisolated(unsafe) let handle: OpaquePointer
  private let options: FetchOptions
  /// What brings everything; nil: nothing does now.
  private var running: Task<Void, any Error>?
  private var isPaused = false

  /// Begins, or goes on with what an earlier fetch has left. `folder` need not exist; nothing else may fetch into it. Throws
  /// `invalidArgument`, `openFailed`, `writeFailed`, and `invalidState` where another fetch is at it.
  public init(folder: String, options: FetchOptions, for transport: (any FetchTransport)? = nil) throws(EdgeKitError) {
    try NativeLibrary.check()
    let platform = options.forThisSystem ? Platform.current : nil
    let sources = options.sources.map { copied($0) }
    let formats = (options.formats ?? platform?.formats.sorted() ?? []).map { copied($0) }
    let seal = options.sha256.map { copied($0) }
    let texts = [platform?.system, platform?.system == nil ? nil : platform?.version].map { $0.map { copied($0) } }
    defer {
      for text in sources + formats { text.deallocate() }
      for text in [seal] + texts { text?.deallocate() }
    }
    var opened: OpaquePointer?
    let status = sources.map { Optional(UnsafePointer($0)) }.withUnsafeBufferPointer { sourcePointers in
      formats.map { Optional(UnsafePointer($0)) }.withUnsafeBufferPointer { formatPointers in
        var wanted = ek_fetch_options(
          struct_size: UInt32(MemoryLayout<ek_fetch_options>.size), source_count: Int32(clamping: sources.count),
          sources: sourcePointers.baseAddress, sha256: seal, formats: formatPointers.baseAddress,
          format_count: Int32(clamping: formats.count), compare: options.compare ? 1 : 0, system: texts[0],
          system_version: texts[1], request_bytes: options.requestBytes ?? transport?.requestBytes ?? 0,
          only_formats: options.formats == nil ? 0 : 1, keep_format: options.keepFormat ? 1 : 0)
        return ek_fetch_open(folder, &wanted, &opened)
      }
    }
    try EdgeKitError.check(status)
    guard let opened else { throw .internalError("ek_fetch_open gave no fetch") }
    handle = opened
    self.options = options
  }

  deinit { ek_fetch_close(handle) }

  /// Has everything come over `transport`, by so many requests at a time, and waits for it. False: it was paused before all was
  /// here. Cancelling the task ends it too; after either another call goes on. `trouble` is told of answers that failed, in one
  /// line. Throws `invalidState` where it runs already,
  /// `fetchFailed` where no source gives what is needed, `checksumMismatch` and `malformedFile` where they give other bytes
  /// again and again, `writeFailed`, also for a disk without the room, `unsupportedBundle`, `unsupportedVersion`,
  /// `invalidArgument` for a folder that has files which are no bundle's, `readFailed`, and `CancellationError`.
  @discardableResult
  public func run(
    over transport: any FetchTransport, connections: Int = 4,
    progress: @escaping @Sendable (FetchProgress) -> Void = { _ in },
    trouble: @escaping @Sendable (String) -> Void = { _ in }
  ) async throws -> Bool {
    guard running == nil else { throw EdgeKitError.invalidState("the fetch runs already") }
    isPaused = false
    let task = Task {
      try await self.bringAll(over: transport, connections: connections, progress: progress, trouble: trouble)
    }
    running = task
    defer { running = nil }
    do {
      try await withTaskCancellationHandler {
        try await task.value
      } onCancel: {
        task.cancel()
      }
      return true
    } catch is CancellationError where isPaused {
      try Task.checkCancellation()
      return false
    }
  }

  /// Ends `run`, which returns false soon; another call of it goes on. Where it does not run, nothing is done.
  public func pause() {
    guard let running else { return }
    isPaused = true
    running.cancel()
  }

  private func bringAll(
    over transport: any FetchTransport, connections: Int, progress: @escaping @Sendable (FetchProgress) -> Void,
    trouble: @escaping @Sendable (String) -> Void
  ) async throws {
    try await withThrowingTaskGroup(of: Void.self) { group in
      var open = 0
      while true {
        try Task.checkCancellation()
        if open >= max(1, connections) {
          try await group.next()
          open -= 1
          progress(try self.progress())
          continue
        }
        switch try next() {
        case .ask(let request):
          open += 1
          group.addTask { try await self.send(request, over: transport, trouble) }
        case .working:
          progress(try self.progress())
          await Task.yield()
        case .wait:
          // Nothing is open where the core waits for itself.
          if open == 0 { try await Task.sleep(for: .milliseconds(100)) }
          if try await group.next() != nil { open -= 1 }
          progress(try self.progress())
        case .ready:
          group.cancelAll()
          progress(try self.progress())
          return
        }
      }
    }
  }

  private func send(
    _ request: FetchRequest, over transport: any FetchTransport, _ trouble: @Sendable (String) -> Void
  ) async throws {
    let source = options.sources[request.source]
    do {
      if request.waitMilliseconds > 0 { try await Task.sleep(for: .milliseconds(request.waitMilliseconds)) }
      try await transport.send(request, to: source, of: self)
    } catch EdgeKitError.fetchFailed(let why) {
      return trouble(why)  // the answer was of no use, and the request is over; where every source has failed, `next` says so
    } catch let error as EdgeKitError {
      throw error
    } catch {
      if Task.isCancelled {  // what is cancelled throws errors of many kinds, which are not the source's fault
        try giveBack(request)
        throw CancellationError()
      }
      trouble("\(source): \(error)")
      return try end(request, "\(error)")
    }
    try end(request, nil)
  }

  /// Says what comes next. Compares what is here already, 32 MB or a run at a time. Throws as `run(over:)`.
  public func next() throws(EdgeKitError) -> FetchStep {
    var found = ek_fetch_request()
    found.struct_size = UInt32(MemoryLayout<ek_fetch_request>.size)
    var step: Int32 = 0
    try EdgeKitError.check(ek_fetch_next(handle, &step, &found))
    switch step {
    case EK_FETCH_ASK: return .ask(FetchRequest(found))
    case EK_FETCH_WORKING: return .working
    case EK_FETCH_WAIT: return .wait
    default: return .ready
    }
  }

  /// Takes what an HTTP server answered, before its bytes; other transports leave it out. Throws `fetchFailed` where the answer
  /// is of no use: the request is over.
  public func answer(_ request: FetchRequest, status: Int, contentRange: String?) throws(EdgeKitError) {
    try EdgeKitError.check(ek_fetch_answer(handle, request.id, Int32(clamping: status), contentRange))
  }

  /// Takes the next bytes of a request. False: no more of it are needed, and it is over. Throws as `run(over:)`.
  public func write(_ request: FetchRequest, _ data: Data) throws(EdgeKitError) -> Bool {
    let status = data.withUnsafeBytes { ek_fetch_write(handle, request.id, $0.baseAddress, UInt64($0.count)) }
    if status == EK_STOPPED { return false }
    try EdgeKitError.check(status)
    return true
  }

  /// Says that a request has no more bytes: `why` is nil where its answer has ended. What it lacks is asked for again. Throws as
  /// `run(over:)`.
  public func end(_ request: FetchRequest, _ why: String?) throws(EdgeKitError) {
    try EdgeKitError.check(ek_fetch_end(handle, request.id, why))
  }

  /// Gives a request back that was not sent, or not to its end, for a reason that is not its source's, such as a pause. What it
  /// lacks is asked for again. One that is over is left alone.
  public func giveBack(_ request: FetchRequest) throws(EdgeKitError) {
    try EdgeKitError.check(ek_fetch_return(handle, request.id))
  }

  /// How far it is.
  public func progress() throws(EdgeKitError) -> FetchProgress { FetchProgress(try info()) }

  /// The folder with what has arrived.
  public func arriving() throws(EdgeKitError) -> String { String(cString: try info().arriving) }

  private func info() throws(EdgeKitError) -> ek_fetch_info {
    var found = ek_fetch_info()
    found.struct_size = UInt32(MemoryLayout<ek_fetch_info>.size)
    try EdgeKitError.check(ek_fetch_get_info(handle, &found))
    return found
  }

  /// Puts the bundle in its place, and removes the one that was there. Sessions of that one must be closed before: what they
  /// read after that has changed. Throws `invalidState` before all is here, and `writeFailed`.
  public func finish() throws(EdgeKitError) { try EdgeKitError.check(ek_fetch_finish(handle)) }

  /// Removes what has arrived; nothing else may be called after it.
  public func discard() throws(EdgeKitError) { try EdgeKitError.check(ek_fetch_discard(handle)) }
}
