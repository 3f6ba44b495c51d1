import CEdgeKit

/// An array that a function of a package takes or gives: dense, row-major, in memory that is valid during the call which
/// it is given to.
public struct PackageArray: @unchecked Sendable {
  public let name: String
  /// "float32", "float16" or "int32".
  public let dtype: String
  public let shape: [Int]
  public let bytes: UnsafeMutableRawPointer

  init(_ given: ek_package_array) {
    name = String(cString: given.name)
    dtype = String(cString: given.dtype)
    shape = UnsafeBufferPointer(start: given.shape, count: Int(given.rank)).map { Int($0) }
    bytes = given.data
  }

  public var count: Int { shape.reduce(1, *) }

  /// Bytes of an element.
  var width: Int { dtype == "float16" ? 2 : 4 }

  /// Copies the elements to where strides, counted in elements, say.
  func copy(to target: UnsafeMutableRawPointer, strides: [Int]) {
    stretches(strides) { own, other, length in
      (target + other).copyMemory(from: bytes + own, byteCount: length)
    }
  }

  /// Fills it with elements from where strides, counted in elements, say.
  func fill(from source: UnsafeRawPointer, strides: [Int]) {
    stretches(strides) { own, other, length in
      (bytes + own).copyMemory(from: source + other, byteCount: length)
    }
  }

  /// Calls `body` for stretches that are dense on both sides: where they begin here and there, and their lengths, in
  /// bytes.
  private func stretches(_ strides: [Int], _ body: (Int, Int, Int) -> Void) {
    let length = strides.last == 1 ? max(1, shape.last ?? 1) : 1
    for index in stride(from: 0, to: count, by: length) {
      body(index * width, stridedOffset(index, shape: shape, strides: strides) * width, length * width)
    }
  }
}
