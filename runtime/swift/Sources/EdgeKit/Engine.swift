/// Runs whole generations. Confined to one thread at a time: the session's, which also makes it.
protocol Engine: AnyObject {
  /// Events go to `onEvent` on the calling thread, between passes; it returns false to stop there. Throws what the
  /// session's stream ends with; returns normally after a stop too.
  func generate(
    prompt: [Int], settings: GenerationSettings, onEvent: (Event) -> Bool
  ) throws(EdgeKitError)

  func info() throws(EdgeKitError) -> SessionInfo
  func statistics() throws(EdgeKitError) -> SessionStatistics

  /// Give memory back as far as `pressure` asks for; called between generations. Later calls work as before, slower.
  func relieve(_ pressure: MemoryPressure)
}
