import CEdgeKit

/// Functions that the native core calls back. Errors do not cross C: the one that ended a call is kept for whoever
/// called the core. A session that was opened with it must be closed before it is released.
protocol CoreTable: AnyObject {
  /// Opens a session of the core over these functions, which the core copies.
  func open(_ path: String, _ options: inout ek_session_options, _ session: inout OpaquePointer?) -> ek_status

  /// A call of the core begins.
  func begin()

  /// What ended it, where the core has `told` that a function has failed.
  func failure(_ told: EdgeKitError) -> EdgeKitError
}

enum CoreCall {
  /// Runs a call of the core that may call functions of a table; nil: the core has all of its own. Throws what a
  /// function threw where that ended it.
  static func check(_ table: (any CoreTable)?, _ body: () -> ek_status) throws(EdgeKitError) {
    table?.begin()
    let status = body()
    do throws(EdgeKitError) {
      try EdgeKitError.check(status)
    } catch {
      guard status == EK_ENGINE_FAILED, let table else { throw error }
      throw table.failure(error)
    }
  }
}
