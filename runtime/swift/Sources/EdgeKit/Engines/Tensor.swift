/// An array of numbers, row-major.
public struct Tensor: Sendable, Equatable {
  public enum Values: Sendable, Equatable {
    case floats([Float])
    case integers([Int64])
    /// Elements as a file stores them, little-endian; `dtype` as in safetensors.
    case stored(dtype: String, bytes: StoredBytes)
  }

  public var shape: [Int]
  public var values: Values

  /// As many values as the shape says.
  public init(_ shape: [Int], _ values: [Float]) {
    precondition(values.count == shape.reduce(1, *))
    self.shape = shape
    self.values = .floats(values)
  }

  public init(_ shape: [Int], integers: [Int64]) {
    precondition(integers.count == shape.reduce(1, *))
    self.shape = shape
    values = .integers(integers)
  }

  public init(_ shape: [Int], dtype: String, bytes: StoredBytes) {
    self.shape = shape
    values = .stored(dtype: dtype, bytes: bytes)
  }

  /// Zeros.
  public init(zeros shape: [Int]) { self.init(shape, [Float](repeating: 0, count: shape.reduce(1, *))) }

  public var count: Int { shape.reduce(1, *) }

  /// As floats. Stored elements of types that are no floats are empty.
  public var floats: [Float] {
    switch values {
    case .floats(let values): return values
    case .integers(let values): return values.map(Float.init)
    case .stored("F32", let bytes): return decode(bytes, UInt32.self) { Float(bitPattern: $0) }
    case .stored("BF16", let bytes): return decode(bytes, UInt16.self) { Float(bitPattern: UInt32($0) << 16) }
    case .stored("F16", let bytes): return decode(bytes, UInt16.self, float16)
    case .stored: return []
    }
  }

  /// As integers; floats are rounded, those that are no numbers are 0.
  public var integers: [Int] {
    switch values {
    case .integers(let values): return values.map { Int($0) }
    default: return floats.map { Int(exactly: $0.rounded()) ?? 0 }
    }
  }
}

private func decode<Bits: FixedWidthInteger>(
  _ bytes: StoredBytes, _ type: Bits.Type, _ convert: (Bits) -> Float
) -> [Float] {
  bytes.withUnsafeBytes { raw in
    (0..<(raw.count / MemoryLayout<Bits>.size)).map {
      convert(Bits(littleEndian: raw.loadUnaligned(fromByteOffset: $0 * MemoryLayout<Bits>.size, as: Bits.self)))
    }
  }
}

/// The value of an IEEE half: Swift's own type for it is missing on some processors.
func float16(_ bits: UInt16) -> Float {
  let sign = UInt32(bits & 0x8000) << 16
  let exponent = UInt32(bits >> 10) & 31
  let fraction = UInt32(bits & 0x3ff)
  switch exponent {
  case 0: return (sign == 0 ? 1 : -1) * Float(fraction) * 0x1p-24
  case 31: return Float(bitPattern: sign | 0x7f80_0000 | fraction << 13)
  default: return Float(bitPattern: sign | (exponent + 112) << 23 | fraction << 13)
  }
}

/// Where the element of a row-major number lies in an array with strides, both counted in elements.
func stridedOffset(_ index: Int, shape: [Int], strides: [Int]) -> Int {
  var rest = index
  var offset = 0
  for axis in shape.indices.reversed() {
    offset += rest % shape[axis] * strides[axis]
    rest /= shape[axis]
  }
  return offset
}
