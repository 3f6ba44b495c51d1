import CEdgeKit
import Foundation
import Synchronization

/// An executor as the C ABI takes it: the functions of `ek_executor`.
final class PackageTable: CoreTable {
  private let executor: any PackageExecutor
  private let name: UnsafeMutablePointer<CChar>
  /// Of the call under way, on its thread.
  private var failed: EdgeKitError?
  /// What opening has failed with, on the core's own thread, by package: the core tells it where that is wanted.
  private let ofOpening = Mutex<[String: EdgeKitError]>([:])

  init(_ name: String, _ executor: any PackageExecutor) {
    self.executor = executor
    self.name = copied(name)
  }

  deinit { name.deallocate() }

  func open(_ path: String, _ options: inout ek_session_options, _ session: inout OpaquePointer?) -> ek_status {
    var table = native
    return ek_session_open_packages(path, &options, &table, &session)
  }

  func begin() { failed = nil }

  func failure(_ told: EdgeKitError) -> EdgeKitError {
    let opening = ofOpening.withLock { all in
      let wanted = all.keys.first { told.message.contains(" failed in opening package \($0): ") }
      return wanted.flatMap { all.removeValue(forKey: $0) }
    }
    return failed ?? opening ?? told
  }

  private var native: ek_executor {
    var table = ek_executor()
    table.struct_size = UInt32(MemoryLayout<ek_executor>.size)
    table.name = UnsafePointer(name)
    table.user = Unmanaged.passUnretained(self).toOpaque()
    table.open = { user, unit, path, functions, count, package, error, size in
      guard let user, let unit, let path, let package else { return 0 }
      let expected = UnsafeBufferPointer(start: functions, count: Int(count)).compactMap { $0 }.map { String(cString: $0) }
      return owner(user).opened(String(cString: unit), String(cString: path), expected, package, error, size)
    }
    table.call = { user, package, function, inputs, inputCount, outputs, outputCount, error, size in
      guard let user, let package, let function else { return 0 }
      let taken = UnsafeBufferPointer(start: inputs, count: Int(inputCount)).map(PackageArray.init)
      let given = UnsafeBufferPointer(start: outputs, count: Int(outputCount)).map(PackageArray.init)
      return owner(user).called(opened(package).package, String(cString: function), taken, given, error, size)
    }
    table.close = { _, package in
      guard let package else { return }
      opened(package).package.close()
      Unmanaged<Opened>.fromOpaque(package).release()
    }
    return table
  }

  /// What C holds of a package.
  fileprivate final class Opened {
    let package: any OpenPackage
    init(_ package: any OpenPackage) { self.package = package }
  }

  private func opened(
    _ unit: String, _ path: String, _ functions: [String],
    _ place: UnsafeMutablePointer<UnsafeMutableRawPointer?>,
    _ error: UnsafeMutablePointer<CChar>?, _ size: UInt64
  ) -> Int32 {
    do throws(EdgeKitError) {
      let package = try executor.open(URL(fileURLWithPath: path, isDirectory: true), functions: functions)
      place.pointee = Unmanaged.passRetained(Opened(package)).toOpaque()
      ofOpening.withLock { $0[unit] = nil }
      return EK_ENGINE_DONE
    } catch let own {
      tell(own, error, size)
      ofOpening.withLock { $0[unit] = own }
      return 0
    }
  }

  private func called(
    _ package: any OpenPackage, _ function: String, _ inputs: [PackageArray], _ outputs: [PackageArray],
    _ error: UnsafeMutablePointer<CChar>?, _ size: UInt64
  ) -> Int32 {
    do throws(EdgeKitError) {
      try package.call(function, inputs: inputs, outputs: outputs)
      return EK_ENGINE_DONE
    } catch let own {
      failed = failed ?? own
      tell(own, error, size)
      return 0
    }
  }

  /// Writes the message as far as there is room.
  private func tell(_ own: EdgeKitError, _ place: UnsafeMutablePointer<CChar>?, _ size: UInt64) {
    guard let place, size > 0 else { return }
    var words = own.message
    while words.utf8.count >= size { words.removeLast() }
    let bytes = Array(words.utf8CString)
    place.update(from: bytes, count: bytes.count)
  }
}

private func owner(_ user: UnsafeMutableRawPointer) -> PackageTable {
  Unmanaged<PackageTable>.fromOpaque(user).takeUnretainedValue()
}

private func opened(_ package: UnsafeMutableRawPointer) -> PackageTable.Opened {
  Unmanaged<PackageTable.Opened>.fromOpaque(package).takeUnretainedValue()
}
