/// Runs whole generations. Confined to one thread at a time: the session's, which also makes it.
protocol Engine: AnyObject {
  /// Events go to `onEvent` on the calling thread, between passes; it returns false to stop there. Throws what the
  /// session's stream ends with; returns normally after a stop too.
  func generate(
    prompt: [Int], settings: GenerationSettings, onEvent: (Event) -> Bool
  ) throws(EdgeKitError)

  func info() throws(EdgeKitError) -> SessionInfo
  func statistics() throws(EdgeKitError) -> SessionStatistics

  /// Told that no generation follows soon.
  func idle() throws(EdgeKitError)

  /// Has `wake` called, from any thread, when memory is to be given back, which `idle` does where no pass runs.
  func whenRelieved(_ wake: @escaping @Sendable () -> Void)
}
