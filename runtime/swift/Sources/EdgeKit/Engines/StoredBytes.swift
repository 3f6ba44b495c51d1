/// Bytes of an array as a file stores them. Weights that an engine is given are the native core's memory: their bytes
/// must not be used once the call that they were given to has returned.
public struct StoredBytes: Sendable, Equatable {
  private let memory: StoredMemory
  private let range: Range<Int>

  /// A copy of `bytes`.
  public init(_ bytes: [UInt8]) { self.init(StoredMemory(copying: bytes), 0..<bytes.count) }

  /// `range` lies in the memory.
  init(_ memory: StoredMemory, _ range: Range<Int>) {
    self.memory = memory
    self.range = range
  }

  public var count: Int { range.count }

  /// The pointer is valid inside `body`.
  public func withUnsafeBytes<Result>(_ body: (UnsafeRawBufferPointer) throws -> Result) rethrows -> Result {
    try withExtendedLifetime(memory) {
      try body(UnsafeRawBufferPointer(rebasing: memory.bytes[range]))
    }
  }

  public static func == (left: StoredBytes, right: StoredBytes) -> Bool {
    left.withUnsafeBytes { own in right.withUnsafeBytes { own.elementsEqual($0) } }
  }
}

/// What stored arrays share: memory of their own, or somebody's until `end`. Nobody writes to it meanwhile.
final class StoredMemory: @unchecked Sendable {
  private var buffer: UnsafeRawBufferPointer?
  private let own: UnsafeMutableRawBufferPointer?

  init(copying bytes: [UInt8]) {
    let made = UnsafeMutableRawBufferPointer.allocate(byteCount: bytes.count, alignment: 64)
    made.copyBytes(from: bytes)
    own = made
    buffer = UnsafeRawBufferPointer(made)
  }

  init(borrowing bytes: UnsafeRawBufferPointer) {
    own = nil
    buffer = bytes
  }

  deinit { own?.deallocate() }

  var bytes: UnsafeRawBufferPointer {
    guard let buffer else { preconditionFailure("weights were used after the call that they were given to") }
    return buffer
  }

  func end() { buffer = nil }
}
