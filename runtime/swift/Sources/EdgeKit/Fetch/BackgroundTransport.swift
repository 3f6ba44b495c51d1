import Foundation
import Synchronization

#if !canImport(FoundationNetworking)  // Linux has no background sessions

  /// Sends requests of 64 MiB by download tasks of a background session, which the system carries out while the application is
  /// suspended, and after it was ended. It serves one fetch at a time.
  ///
  ///     let transport = try BackgroundTransport(identifier: "org.example.llada")
  ///     let fetch = try BundleFetch(folder: path, options: options, for: transport)
  ///     try await fetch.run(over: transport)
  ///     try await fetch.finish()
  ///     transport.clear()
  ///
  /// The application makes it, once in a process and with the same identifier, whenever it starts while the bundle is on its
  /// way, and gives it what `application(_:handleEventsForBackgroundURLSession:completionHandler:)` was called with. Where a
  /// fetch is paused or cancelled its tasks go on, for the next; `clear` ends them. The system decides when they go on, so the time
  /// that a request has for its answer is no limit here.
  ///
  /// What becomes of the tasks of an earlier process: ids of requests live as long as their fetch, and those that an ended
  /// process had mean nothing to a new one. They need not. A task's description has the file, the offset and the length, and so
  /// does the name of the file that a finished one has left. The new fetch asks for all bytes that its folder lacks, and so for
  /// these; only not in the same pieces, since it does not trust what lies up to 64 KiB before a hole. Every request is
  /// therefore put together: of files that tasks have left, of tasks that are still under way, and of new tasks for the gaps
  /// between them. All of it goes to the core under the new id, in the order of the file, and is compared there with digests.
  /// No byte is given twice: what comes again because it was damaged is asked for anew.
  public final class BackgroundTransport: FetchTransport {
    public let requestBytes: UInt64? = 64 << 20

    /// Of a file, read at once.
    private static let readBytes = 1 << 20

    private let tasks: BackgroundTasks
    private var downloads: BackgroundDownloads { tasks.downloads }
    /// Where the bytes begin that were not given yet, of files that have more than one request asked for.
    private let given = Mutex<[URL: UInt64]>([:])

    /// `identifier`: of the session, one for each bundle, the same in every process. `allowsCellular`: whether networks may be
    /// used that cost. Throws where the folder for finished files cannot be made.
    public init(identifier: String, allowsCellular: Bool = false) throws {
      let caches = try FileManager.default.url(for: .cachesDirectory, in: .userDomainMask, appropriateFor: nil, create: true)
      let folder = caches.appendingPathComponent("edgekit-fetch").appendingPathComponent(identifier)
      let configuration = URLSessionConfiguration.background(withIdentifier: identifier)
      configuration.allowsCellularAccess = allowsCellular
      configuration.sessionSendsLaunchEvents = true
      tasks = BackgroundTasks(configuration: configuration, downloads: try BackgroundDownloads(folder: folder))
      tasks.session()
    }

    /// Takes the completion handler of the application's delegate; it is called on the main thread when the system has told all.
    public func handleEvents(completionHandler: @escaping @Sendable () -> Void) { tasks.setEvents(completionHandler) }

    /// Ends all tasks, and removes what was not given to a fetch.
    public func clear() {
      tasks.cancel()
      for found in downloads.found() { downloads.remove(found.file) }
    }

    public func send(_ request: FetchRequest, to address: String, of fetch: BundleFetch) async throws {
      await tasks.reconnect()
      if request.bytes == 0 { return try await sendWhole(request, to: address, of: fetch) }
      let end = request.offset + request.bytes
      var at = request.offset
      while at < end {
        try Task.checkCancellation()
        if let found = downloads.found().first(where: { $0.name == request.name && holds($0, at) }) {
          let until = min(found.end, end)
          let goesOn = try await give(found.file, from: at - found.offset, bytes: until - at, to: request, of: fetch)
          used(found, until)
          if !goesOn { return }
          at = until
        } else if let part = tasks.parts().first(where: { $0.name == request.name && $0.offset <= at && at < $0.end }) {
          // Where it fails, what it was to bring is a gap.
          _ = try await tasks.end(of: part)
        } else {
          let part = BackgroundPart(address: address, name: request.name, offset: at, bytes: gapEnd(request.name, at, end) - at)
          try tasks.begin(part)
          let ended = try await tasks.end(of: part)
          // The core compares an answer with the start of its request.
          let isStart = at == request.offset
          if isStart, let status = ended?.status {
            try await fetch.answer(request, status: status, contentRange: ended?.contentRange)
          }
          if let trouble = ended?.trouble { throw FetchTrouble(trouble) }
          guard ended?.status == 200 else { continue }
          // The server does not know ranges.
          guard let whole = downloads.found().first(where: { $0.name == request.name && $0.bytes == request.size }) else {
            throw FetchTrouble("answered with another file than the bundle lists")
          }
          given.withLock { $0[whole.file] = nil }
          if isStart {  // having been told so, the core takes all that it wants of the file
            _ = try await give(whole.file, from: 0, bytes: request.size, to: request, of: fetch)
            downloads.remove(whole.file)
            return
          }
        }
      }
    }

    /// A manifest: the one that is there now, not one that an earlier task has left.
    private func sendWhole(_ request: FetchRequest, to address: String, of fetch: BundleFetch) async throws {
      let part = BackgroundPart(address: address, name: request.name, offset: 0, bytes: 0)
      try tasks.begin(part)
      let ended = try await tasks.end(of: part)
      if let status = ended?.status { try await fetch.answer(request, status: status, contentRange: ended?.contentRange) }
      if let trouble = ended?.trouble { throw FetchTrouble(trouble) }
      guard let found = downloads.found().first(where: { $0.name == request.name && $0.bytes == 0 }) else { return }
      defer { downloads.remove(found.file) }
      _ = try await give(found.file, from: 0, bytes: .max, to: request, of: fetch)
    }

    /// Whether a file has a byte that was not given yet.
    private func holds(_ found: BackgroundDownloads.Found, _ at: UInt64) -> Bool {
      max(found.offset, given.withLock { $0[found.file] ?? 0 }) <= at && at < found.end
    }

    /// Removes a file whose last bytes were given.
    private func used(_ found: BackgroundDownloads.Found, _ until: UInt64) {
      given.withLock { $0[found.file] = until < found.end ? until : nil }
      if until == found.end { downloads.remove(found.file) }
    }

    /// Where the first byte behind `at` is that something has or brings already.
    private func gapEnd(_ name: String, _ at: UInt64, _ end: UInt64) -> UInt64 {
      let files = downloads.found().filter { $0.name == name && holds($0, $0.offset) }.map { $0.offset }
      let parts = tasks.parts().filter { $0.name == name }.map { $0.offset }
      return (files + parts).filter { $0 > at && $0 < end }.min() ?? end
    }

    /// False where the core needs no more of the request; `bytes` .max: all there are. Throws what the core and the file do.
    private func give(
      _ file: URL, from: UInt64, bytes: UInt64, to request: FetchRequest, of fetch: BundleFetch
    ) async throws -> Bool {
      let handle = try FileHandle(forReadingFrom: file)
      defer { try? handle.close() }
      try handle.seek(toOffset: from)
      var left = bytes
      while left > 0, let data = try handle.read(upToCount: Int(min(left, UInt64(Self.readBytes)))), !data.isEmpty {
        try Task.checkCancellation()
        guard try await fetch.write(request, data) else { return false }
        left -= UInt64(data.count)
      }
      if left > 0 && bytes != .max {
        downloads.remove(file)
        throw FetchTrouble("the file of a finished task was cut")
      }
      return true
    }
  }

#endif
