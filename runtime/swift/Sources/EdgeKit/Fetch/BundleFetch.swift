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
/// A fetch that failed or was cancelled is to be released, and made anew to go on. The core writes and compares in its calls, a
/// run at a time, which keeps one of the threads of all tasks for that long.
public actor BundleFetch {
  /// The core's calls come one after the other; nobody has it when it is closed.
  private nonisolated(unsafe) let handle: OpaquePointer
  private let options: FetchOptions

  /// Begins, or goes on with what an earlier fetch has left. `folder` need not exist; nothing else may fetch into it. Throws
  /// `invalidArgument`, `openFailed`, `writeFailed`, and `invalidState` where another fetch is at it.
  public init(folder: String, options: FetchOptions, for transport: (any FetchTransport)? = nil) throws(EdgeKitError) {
    try NativeLibrary.check()
    let platform = options.forThisSystem ? Platform.current : nil
    let sources = options.sources.map { copied($0) }
    let formats = (platform?.formats.sorted() ?? []).map { copied($0) }
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
          system_version: texts[1], request_bytes: options.requestBytes ?? transport?.requestBytes ?? 0)
        return ek_fetch_open(folder, &wanted, &opened)
      }
    }
    try EdgeKitError.check(status)
    guard let opened else { throw .internalError("ek_fetch_open gave no fetch") }
    handle = opened
    self.options = options
  }

  deinit { ek_fetch_close(handle) }

  /// Has everything come over `transport`, by so many requests at a time, and waits for it. Cancelling the task ends it. Throws
  /// `fetchFailed` where no source gives what is needed, `checksumMismatch` and `malformedFile` where they give other bytes
  /// again and again, `writeFailed`, also for a disk without the room, `unsupportedBundle`, `unsupportedVersion`,
  /// `invalidArgument` for a folder that has files which are no bundle's, `readFailed`, and `CancellationError`.
  public func run(
    over transport: any FetchTransport, connections: Int = 4, progress: @Sendable (FetchProgress) -> Void = { _ in }
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
          group.addTask { try await self.send(request, over: transport) }
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

  private func send(_ request: FetchRequest, over transport: any FetchTransport) async throws {
    if request.waitMilliseconds > 0 { try await Task.sleep(for: .milliseconds(request.waitMilliseconds)) }
    do {
      try await transport.send(request, to: options.sources[request.source], of: self)
    } catch EdgeKitError.fetchFailed(_) {
      return  // the answer was of no use, and the request is over; where every source has failed, `next` says so
    } catch let error as EdgeKitError {
      throw error
    } catch {
      try Task.checkCancellation()  // what is cancelled throws errors of many kinds, which are not the source's fault
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
