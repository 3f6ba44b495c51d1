/// Bytes of an array as a file stores them. Arrays that were read together share their memory.
public struct StoredBytes: Sendable, Equatable {
  private let memory: PageAlignedMemory
  private let range: Range<Int>

  /// A copy of `bytes`.
  public init(_ bytes: [UInt8]) {
    let memory = PageAlignedMemory(count: bytes.count)
    memory.buffer.copyBytes(from: bytes)
    self.init(memory, 0..<bytes.count)
  }

  /// `range` lies in the memory, which nobody writes to any more.
  init(_ memory: PageAlignedMemory, _ range: Range<Int>) {
    self.memory = memory
    self.range = range
  }

  public var count: Int { range.count }

  /// The pointer is valid inside `body`.
  public func withUnsafeBytes<Result>(_ body: (UnsafeRawBufferPointer) throws -> Result) rethrows -> Result {
    try withExtendedLifetime(memory) {
      try body(UnsafeRawBufferPointer(rebasing: memory.buffer[range]))
    }
  }

  public static func == (left: StoredBytes, right: StoredBytes) -> Bool {
    left.withUnsafeBytes { own in right.withUnsafeBytes { own.elementsEqual($0) } }
  }
}

/// Memory at a page boundary, which systems read into without a copy. Whoever made it fills it before it is shared.
final class PageAlignedMemory: @unchecked Sendable {
  /// Apple's page size; every other system's divides it.
  private static let pageBytes = 16 << 10

  let buffer: UnsafeMutableRawBufferPointer

  init(count: Int) { buffer = .allocate(byteCount: count, alignment: Self.pageBytes) }

  deinit { buffer.deallocate() }
}
