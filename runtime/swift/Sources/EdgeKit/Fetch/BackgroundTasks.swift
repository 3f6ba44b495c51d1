import Foundation
import Synchronization

#if !canImport(FoundationNetworking)  // Linux has no background sessions

  /// How a task ended.
  struct BackgroundEnd: Sendable {
    /// Of HTTP; nil where no server answered.
    var status: Int?
    var contentRange: String?
    /// nil where its file was kept.
    var trouble: String?
  }

  /// The download tasks of a background session, those of an earlier process among them.
  final class BackgroundTasks: NSObject, URLSessionDownloadDelegate {
    private typealias Waiter = CheckedContinuation<BackgroundEnd?, Never>

    private struct State {
      var tasks: [BackgroundPart: URLSessionDownloadTask] = [:]
      /// Of tasks that are over; `trouble` is set before that, where a file is of no use.
      var ends: [BackgroundPart: BackgroundEnd] = [:]
      var waiters: [UUID: (part: BackgroundPart, waiter: Waiter)] = [:]
      var events: (@Sendable () -> Void)?
      var isReconnected = false
    }

    let downloads: BackgroundDownloads
    private let configuration: URLSessionConfiguration
    private let state = Mutex(State())
    private let made = Mutex<URLSession?>(nil)

    init(configuration: URLSessionConfiguration, downloads: BackgroundDownloads) {
      self.configuration = configuration
      self.downloads = downloads
    }

    /// The session, made with its delegate. From then on the system tells of tasks that ended before.
    @discardableResult
    func session() -> URLSession {
      made.withLock { made in
        if let made { return made }
        let session = URLSession(configuration: configuration, delegate: self, delegateQueue: nil)
        made = session
        return session
      }
    }

    func setEvents(_ handler: @escaping @Sendable () -> Void) { state.withLock { $0.events = handler } }

    /// Finds the tasks that an earlier process has begun.
    func reconnect() async {
      guard !state.withLock({ $0.isReconnected }) else { return }
      let found = await session().allTasks
      state.withLock { state in
        guard !state.isReconnected else { return }
        state.isReconnected = true
        for case let task as URLSessionDownloadTask in found where task.state == .running || task.state == .suspended {
          guard let part = BackgroundPart(text: task.taskDescription), state.ends[part] == nil else { continue }
          state.tasks[part] = task
        }
      }
    }

    /// Parts that are under way.
    func parts() -> [BackgroundPart] { state.withLock { Array($0.tasks.keys) } }

    /// Begins to bring a part. Throws `FetchTrouble` for what is no address.
    func begin(_ part: BackgroundPart) throws {
      let asked = try URLRequest(below: part.address, name: part.name, offset: part.offset, bytes: part.bytes)
      let task = session().downloadTask(with: asked)
      task.taskDescription = part.text
      if part.bytes > 0 { task.countOfBytesClientExpectsToReceive = Int64(clamping: part.bytes) }
      state.withLock { state in
        state.tasks[part] = task
        state.ends[part] = nil
      }
      task.resume()
    }

    /// Waits until a part is here or has failed; nil where nothing is known of it. The task that waits may be cancelled, the one
    /// of the session goes on. Throws `CancellationError`.
    func end(of part: BackgroundPart) async throws -> BackgroundEnd? {
      let id = UUID()
      let found = await withTaskCancellationHandler {
        await withCheckedContinuation { (waiter: Waiter) in
          let over = state.withLock { state in
            if state.tasks[part] != nil && !Task.isCancelled {
              state.waiters[id] = (part, waiter)
              return false
            }
            return true
          }
          if over { waiter.resume(returning: state.withLock { $0.ends[part] }) }
        }
      } onCancel: {
        state.withLock { $0.waiters.removeValue(forKey: id) }?.waiter.resume(returning: nil)
      }
      try Task.checkCancellation()
      return found
    }

    /// Ends all tasks.
    func cancel() {
      for task in state.withLock({ Array($0.tasks.values) }) { task.cancel() }
    }

    // MARK: - URLSession tells

    func urlSession(_ session: URLSession, downloadTask: URLSessionDownloadTask, didFinishDownloadingTo location: URL) {
      guard let part = BackgroundPart(text: downloadTask.taskDescription) else { return }
      do {
        try keep(location, of: downloadTask, part)
      } catch {
        state.withLock { $0.ends[part, default: BackgroundEnd()].trouble = "\(error)" }
      }
    }

    /// Throws for an answer whose bytes are not those that were asked for.
    private func keep(_ file: URL, of task: URLSessionDownloadTask, _ part: BackgroundPart) throws {
      guard let response = task.response as? HTTPURLResponse else { throw FetchTrouble("answered with something else than HTTP") }
      try response.checkCoding()
      // Redirects of background sessions are followed whatever their delegate says.
      guard task.originalRequest?.url?.scheme != "https" || task.currentRequest?.url?.scheme == "https" else {
        throw FetchTrouble("leads to an address without encryption")
      }
      let size = UInt64(try file.resourceValues(forKeys: [.fileSizeKey]).fileSize ?? 0)
      switch response.statusCode {
      case 200:
        // Of a part the whole file, whose bytes are as good.
        try downloads.keep(file, name: part.name, offset: 0, bytes: part.bytes == 0 ? 0 : size)
      case 206 where part.bytes > 0:
        let numbers = (response.contentRange ?? "").split { !$0.isASCII || !$0.isNumber }.compactMap { UInt64($0) }
        guard numbers.count >= 2, numbers[0] == part.offset, numbers[1] < part.end, size == numbers[1] &- part.offset &+ 1 else {
          throw FetchTrouble("was asked for bytes from \(part.offset) and answered with \(response.contentRange ?? "others")")
        }
        try downloads.keep(file, name: part.name, offset: part.offset, bytes: size)
      default:
        throw FetchTrouble("answered with HTTP status \(response.statusCode)")
      }
    }

    func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
      guard let part = BackgroundPart(text: task.taskDescription) else { return }
      let response = task.response as? HTTPURLResponse
      let (waiters, end) = state.withLock { state in
        var end = state.ends[part] ?? BackgroundEnd()
        end.status = response?.statusCode
        end.contentRange = response?.contentRange
        if let error { end.trouble = "the connection broke (\(error.localizedDescription))" }
        state.ends[part] = end
        state.tasks[part] = nil
        let waiters = state.waiters.filter { $0.value.part == part }
        for id in waiters.keys { state.waiters[id] = nil }
        return (waiters.values.map { $0.waiter }, end)
      }
      for waiter in waiters { waiter.resume(returning: end) }
    }

    func urlSessionDidFinishEvents(forBackgroundURLSession session: URLSession) {
      let events = state.withLock { state in
        defer { state.events = nil }
        return state.events
      }
      // Of UIKit's, which wants to be called on the main thread.
      if let events { DispatchQueue.main.async(execute: events) }
    }
  }

#endif
