import CEdgeKit
import XCTest

@testable import EdgeKit

/// Arrays, masks and mixtures, beside the plainest way to compute them.
final class ArrayTests: XCTestCase {
  func testHalvesAreWhatTheyAre() {
    #if arch(arm64) || os(Linux)
      for bits in UInt16.min...UInt16.max {
        let (found, wanted) = (float16(bits), Float(Float16(bitPattern: bits)))
        if wanted.isNaN { XCTAssertTrue(found.isNaN) } else { XCTAssertEqual(found, wanted) }
      }
    #endif
  }

  func testStoredValuesAreDecoded() {
    let bytes: [UInt8] = [0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]
    XCTAssertEqual(Tensor([2], dtype: "F32", bytes: StoredBytes(bytes)).floats, [1, -2])
    XCTAssertEqual(Tensor([2], dtype: "BF16", bytes: StoredBytes([0x80, 0x3f, 0, 0xc0])).floats, [1, -2])
    XCTAssertEqual(Tensor([2], dtype: "F16", bytes: StoredBytes([0, 0x3c, 0, 0xc0])).floats, [1, -2])
    XCTAssertEqual(Tensor([3], [0.4, -1.6, .nan]).integers, [0, -2, 0])
  }

  func testArraysOfPackagesGoThroughStridesAndBack() {
    for shape in [[1, 2, 3], [4], [2, 3, 2, 4], [5, 1]] {
      for gap in [0, 3] {
        // Rows, and what is in them, further apart than they must be.
        var strides = shape.indices.map { shape[($0 + 1)...].reduce(1, *) + gap }
        strides[shape.count - 1] = gap == 0 ? 1 : 2
        for axis in shape.indices.dropLast().reversed() { strides[axis] = strides[axis + 1] * shape[axis + 1] + gap }
        var values = (0..<shape.reduce(1, *)).map { Int32($0 + 1) }
        var (far, back) = ([Int32](repeating: -1, count: 500), [Int32](repeating: 0, count: values.count))
        withArray(shape, &values) { own in far.withUnsafeMutableBytes { own.copy(to: $0.baseAddress!, strides: strides) } }
        withArray(shape, &back) { own in far.withUnsafeBytes { own.fill(from: $0.baseAddress!, strides: strides) } }
        XCTAssertEqual(back, values)
        for (index, value) in values.enumerated() {
          XCTAssertEqual(far[stridedOffset(index, shape: shape, strides: strides)], value)
        }
        XCTAssertEqual(far.filter { $0 != -1 }.count, values.count)
      }
    }
  }

  private func withArray(_ shape: [Int], _ values: inout [Int32], _ body: (PackageArray) -> Void) {
    let sizes = shape.map(Int64.init)
    values.withUnsafeMutableBytes { bytes in
      sizes.withUnsafeBufferPointer { sizes in
        "x".withCString { name in
          "int32".withCString { dtype in
            body(
              PackageArray(
                ek_package_array(
                  name: name, dtype: dtype, shape: sizes.baseAddress, rank: Int64(sizes.count), data: bytes.baseAddress,
                  bytes: UInt64(bytes.count))))
          }
        }
      }
    }
  }

  /// Whatever their order, the sum is that of the experts' numbers, bit for bit.
  func testExpertsInAnyOrderGiveTheSameSum() throws {
    let (rows, hidden, k, experts) = (5, 3, 2, 4)
    let x = (0..<(rows * hidden)).map { _ in Float.random(in: -1...1) }
    let weight = (0..<(rows * k)).map { _ in Float.random(in: 0...1) }
    let index: [Int64] = [0, 3, 2, 1, 3, 0, 1, 3, 2, 0]
    func made() throws -> Mixture {
      try Mixture(
        "p", x: Tensor([rows, hidden], x), index: Tensor([rows, k], integers: index), weight: Tensor([rows, k], weight),
        experts: experts)
    }
    func scale(_ expert: Int) -> Float { [1e8, -1e8, 1, 0.1][expert] }
    var plain = [Float](repeating: 0, count: rows * hidden)
    for expert in 0..<experts {
      for place in index.indices where index[place] == expert {
        for column in 0..<hidden {
          plain[place / k * hidden + column] += x[place / k * hidden + column] * scale(expert) * weight[place]
        }
      }
    }
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
      var mixture = try made()
      XCTAssertEqual(mixture.counts(), [0: 3, 1: 2, 2: 2, 3: 3])
      for expert in order {
        try mixture.add(expert) { rows in Tensor(rows.shape, rows.floats.map { $0 * scale(expert) }) }
      }
      XCTAssertEqual(mixture.sum(), Tensor([rows, hidden], plain))
    }
    var mixture = try made()
    XCTAssertThrowsError(try mixture.add(0) { _ in Tensor(zeros: [1, hidden]) })
    XCTAssertThrowsError(
      try Mixture(
        "p", x: Tensor(zeros: [1, 1]), index: Tensor([1, 1], integers: [4]), weight: Tensor([1, 1], [1]), experts: 4))
  }

  /// Heads lie apart in the core's memory, on both sides.
  func testKeysAndValuesGoToAndFro() throws {
    let (heads, kept, rows, dimension, stride) = (2, 3, 4, 2, 20)
    let stored: [Float] = (0..<(heads * stride)).map { Float($0) }
    var written = [Float](repeating: -1, count: heads * stride)
    let values = Tensor([1, heads, rows, dimension], (0..<(heads * rows * dimension)).map { Float(100 + $0) })
    try stored.withUnsafeBufferPointer { stored in
      try written.withUnsafeMutableBufferPointer { written in
        var own = ek_attention()
        (own.kv_heads, own.head_dim, own.kept) = (Int64(heads), Int64(dimension), Int64(kept))
        (own.own_stride, own.k) = (Int64(stride), written.baseAddress)
        let expected = Tensor([1, heads, kept, dimension], [0, 1, 2, 3, 4, 5, 20, 21, 22, 23, 24, 25])
        let start = try XCTUnwrap(stored.baseAddress)
        for pieces in [[(0, 3)], [(0, 1), (2, 2)]] {
          let keys = pieces.map { ek_keys(k: start + $0.0, v: start + $0.0, count: Int64($0.1), stride: Int64(stride)) }
          keys.withUnsafeBufferPointer { keys in
            (own.pieces, own.piece_count) = (keys.baseAddress, Int64(keys.count))
            XCTAssertEqual(own.prefix.keys, expected)
          }
        }
        XCTAssertEqual(own.addedMask(rows), Tensor(zeros: [rows, kept + rows]))
        try own.store(keys: values, values: values, rows: rows)
        XCTAssertThrowsError(try own.store(keys: Tensor(zeros: [1, heads, 3, dimension]), values: values, rows: rows))
      }
    }
    let gap = [Float](repeating: -1, count: stride - rows * dimension)
    let (first, second) = (Array(values.floats.prefix(rows * dimension)), Array(values.floats.suffix(rows * dimension)))
    XCTAssertEqual(written, first + gap + second + gap)
  }

  func testFactorsOfAnAdapterAreThoseOfTheSegment() {
    var own = ek_attention()
    let factors: [Float] = [1, 1, 1]
    var x: [Float] = [0]
    x.withUnsafeMutableBufferPointer { x in
      withUnsafePointer(to: &own) { layer in
        let layers = UnsafeBufferPointer(start: layer, count: 1)
        XCTAssertNil(CallSegment(rows: 3, isCausal: false, x: x, layers: layers).adapter)
      }
      factors.withUnsafeBufferPointer { factors in
        own.adapter = factors.baseAddress
        withUnsafePointer(to: &own) { layer in
          let layers = UnsafeBufferPointer(start: layer, count: 1)
          let segment = CallSegment(rows: 3, isCausal: false, x: x, layers: layers)
          XCTAssertEqual(segment.adapter, Tensor([3, 1], [1, 1, 1]))
        }
      }
    }
  }
}
