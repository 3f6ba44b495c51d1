import Foundation
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Sends requests while the application runs, by data tasks of a session of its own. Redirects are followed, from https to
/// https alone. An answer that does not begin in time, or gives next to nothing, is ended. It may serve several fetches.
public final class ForegroundTransport: FetchTransport {
  public let requestBytes: UInt64? = nil
  private let tasks = ForegroundTasks()
  private let session: URLSession

  /// `configuration`: of the session, such as one that allows no cellular network.
  public init(configuration: URLSessionConfiguration = .ephemeral) {
    session = URLSession(configuration: configuration, delegate: tasks, delegateQueue: nil)
  }

  // The session holds its delegate until then.
  deinit { session.finishTasksAndInvalidate() }

  public func send(_ request: FetchRequest, to address: String, of fetch: BundleFetch) async throws {
    let asked = try URLRequest(below: address, name: request.name, offset: request.offset, bytes: request.bytes)
    try await tasks.run(session.dataTask(with: asked), request, of: fetch)
  }
}

/// Data tasks whose bytes go to a fetch as they come.
private final class ForegroundTasks: NSObject, URLSessionDataDelegate {
  /// What came of a task, in order.
  private enum Part: Sendable {
    case head(HTTPURLResponse)
    case data(Data)
  }

  /// A task that nobody has taken all parts of yet.
  private struct Open {
    let parts: AsyncThrowingStream<Part, any Error>.Continuation
    var hasBegun = false
    /// Bytes that came since it was looked at, and those that wait to be written.
    var come = 0
    var waiting = 0
    var isSuspended = false
  }

  /// Bytes of a task that wait to be written before it is suspended: a server may be faster than the disk, and one that ignores
  /// ranges sends the whole file.
  private static let mostWaiting = 4 << 20

  private let open = Mutex<[Int: Open]>([:])

  func run(_ task: URLSessionDataTask, _ request: FetchRequest, of fetch: BundleFetch) async throws {
    let (parts, continuation) = AsyncThrowingStream.makeStream(of: Part.self, throwing: (any Error).self)
    open.withLock { $0[task.taskIdentifier] = Open(parts: continuation) }
    let watching = Task { await watch(task.taskIdentifier, request) }
    defer {
      watching.cancel()
      task.cancel()
      _ = open.withLock { $0.removeValue(forKey: task.taskIdentifier) }
    }
    try await withTaskCancellationHandler {
      task.resume()
      for try await part in parts {
        switch part {
        case .head(let response):
          try response.checkCoding()
          try await fetch.answer(request, status: response.statusCode, contentRange: response.contentRange)
        case .data(let data):
          guard try await fetch.write(request, data) else { return }
          taken(data.count, of: task)
        }
      }
      try Task.checkCancellation()  // a stream ends quietly where the task that reads it is cancelled
    } onCancel: {
      task.cancel()
    }
  }

  /// Ends the parts of a task whose answer has not begun in time, or gives next to nothing, so that another source may give them.
  private func watch(_ task: Int, _ request: FetchRequest) async {
    let least = request.leastBytesPerSecond * request.patienceMilliseconds / 1000
    let span = "in \(request.patienceMilliseconds / 1000) seconds"
    while true {
      do {
        try await Task.sleep(for: .milliseconds(request.patienceMilliseconds))
      } catch {
        return  // it is over
      }
      open.withLock { open in
        guard var found = open[task] else { return }
        if !found.hasBegun {
          found.parts.finish(throwing: FetchTrouble("gave no answer \(span)"))
        } else if found.come < least && found.waiting == 0 {  // else the disk is slow
          found.parts.finish(throwing: FetchTrouble("gave \(found.come) bytes \(span)"))
        }
        found.come = 0
        open[task] = found
      }
    }
  }

  private func taken(_ bytes: Int, of task: URLSessionTask) {
    let resumes = open.withLock { open in
      guard var found = open[task.taskIdentifier] else { return false }
      found.waiting -= bytes
      let resumes = found.isSuspended && found.waiting <= Self.mostWaiting / 2
      if resumes { found.isSuspended = false }
      open[task.taskIdentifier] = found
      return resumes
    }
    if resumes { task.resume() }
  }

  // MARK: - URLSession tells

  func urlSession(
    _ session: URLSession, dataTask: URLSessionDataTask, didReceive response: URLResponse,
    completionHandler: @escaping @Sendable (URLSession.ResponseDisposition) -> Void
  ) {
    let parts = open.withLock { open in
      open[dataTask.taskIdentifier]?.hasBegun = true
      return open[dataTask.taskIdentifier]?.parts
    }
    guard let parts, let response = response as? HTTPURLResponse else { return completionHandler(.cancel) }
    parts.yield(.head(response))
    completionHandler(.allow)
  }

  func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
    let suspends = open.withLock { open in
      guard var found = open[dataTask.taskIdentifier] else { return false }
      found.parts.yield(.data(data))
      found.come += data.count
      found.waiting += data.count
      let suspends = !found.isSuspended && found.waiting > Self.mostWaiting
      if suspends { found.isSuspended = true }
      open[dataTask.taskIdentifier] = found
      return suspends
    }
    if suspends { dataTask.suspend() }
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    let parts = open.withLock { $0[task.taskIdentifier]?.parts }
    if let error {
      parts?.finish(throwing: FetchTrouble("the connection broke (\(error.localizedDescription))"))
    } else {
      parts?.finish()
    }
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest, completionHandler: @escaping @Sendable (URLRequest?) -> Void
  ) {
    // Where it is not followed, the core is given the answer that leads elsewhere, which is of no use to it.
    let isSafe = task.originalRequest?.url?.scheme != "https" || request.url?.scheme == "https"
    completionHandler(isSafe ? request : nil)
  }
}
