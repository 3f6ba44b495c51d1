import XCTest

@testable import EdgeKit

/// Arrays, masks and the joined head, beside the plainest way to compute them.
final class ArrayTests: XCTestCase {
  func testHalvesGoThereAndBack() {
    for bits in UInt16.min...UInt16.max {
      let value = float16(bits)
      if value.isNaN {
        XCTAssertTrue(float16(float16Bits(value)).isNaN)
      } else {
        XCTAssertEqual(float16Bits(value), bits)
      }
    }
    #if arch(arm64) || os(Linux)
      var generator = SystemRandomNumberGenerator()
      for _ in 0..<20000 {
        let value = Float(bitPattern: generator.next())
        if !value.isNaN { XCTAssertEqual(float16Bits(value), Float16(value).bitPattern, "\(value)") }
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

  func testPaddingPutsEveryElementInItsPlace() throws {
    let cases: [([Int], [Int])] = [
      ([1, 2, 3], [1, 4, 3]), ([2, 3, 2, 4], [2, 3, 5, 4]), ([3], [5]), ([1, 2, 0, 4], [1, 2, 3, 4]),
    ]
    for (shape, target) in cases {
      let values: [Float] = (0..<shape.reduce(1, *)).map { Float($0 + 1) }
      let feature = PackagePrograms.Feature(name: "x", dtype: "float32", shape: target, role: "x")
      let out = try padded(Tensor(shape, values), to: feature)
      XCTAssertEqual(out.shape, target)
      XCTAssertEqual(out.floats.reduce(0, +), values.reduce(0, +))
      let strides = target.indices.map { target[($0 + 1)...].reduce(1, *) }
      for (index, value) in values.enumerated() {
        XCTAssertEqual(out.floats[stridedOffset(index, shape: shape, strides: strides)], value)
      }
    }
    let small = PackagePrograms.Feature(name: "x", dtype: "float32", shape: [1, 2], role: "x")
    XCTAssertThrowsError(try padded(Tensor(zeros: [1, 3]), to: small))
    XCTAssertThrowsError(try padded(Tensor(zeros: [2]), to: small))
  }

  func testMasksHidePaddingWithinFloat16() {
    var mask = Tensor(zeros: [2, 5]).floats
    mask[4] = maskedScore
    let low = packageMaskedScore
    let found = paddedMask(Tensor([2, 5], mask), kept: 3, prefix: 4, length: 3)
    XCTAssertEqual(found.shape, [3, 7])
    XCTAssertEqual(
      found.floats, [0, 0, 0, low, 0, low, low, 0, 0, 0, low, 0, 0, low, 0, 0, 0, low, 0, 0, low])
    XCTAssertEqual(float16(float16Bits(low)), low)
  }

  func testAPrefillSeesWhatLiesBeforeAndWithinTheWindow() {
    let mask = attentionMask(first: 5, length: 3, kept: 2, window: 3, phase: .prefill).floats
    let hidden: [Int] = mask.map { $0 < 0 ? 1 : 0 }
    // Keys at 3, 4, 5, 6, 7 for positions 5, 6, 7.
    XCTAssertEqual(hidden, [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0])
    XCTAssertEqual(Set(attentionMask(first: 5, length: 3, kept: 2, window: 3, phase: .denoise).floats), [0])
  }

  func testAWindowKeepsItsLastPositions() {
    func layer(_ window: Int?) -> Manifest.Layer {
      Manifest.Layer(
        program: "", run: "", experts: [], kvHeads: 2, headDim: 3, rope: "", window: window, package: nil, slot: nil)
    }
    var prefix = PrefixCache([layer(nil), layer(5)])
    /// Entry (head, position, d) of [1, 2, T, 3] is 1000 head + 10 position + d.
    func numbered(_ positions: Range<Int>) -> Tensor {
      var values: [Float] = []
      for head in 0..<2 {
        for place in positions {
          for d in 0..<3 { values.append(Float(1000 * head + 10 * place + d)) }
        }
      }
      return Tensor([1, 2, positions.count, 3], values)
    }
    var position = 0
    for added in [1, 3, 2, 7, 1] {
      let chunk = numbered(position..<(position + added))
      for index in 0..<2 { prefix.append(index, keys: chunk, values: chunk) }
      prefix.advance(added)
      position += added
      for (index, kept) in [(0, position), (1, min(position, 4))] {
        XCTAssertEqual(prefix.kept(index), kept)
        XCTAssertEqual(prefix.view(index).keys, numbered((position - kept)..<position))
      }
    }
    XCTAssertEqual(prefix.length, position)
    prefix.clear()
    XCTAssertEqual(prefix.view(1).values.shape, [1, 2, 0, 3])
  }

  func testTheHeadDoesNotDependOnHowItIsCut() {
    var request = HeadRequest()
    request.soft = true
    request.topK = 6
    request.logits = true
    request.gumbel = { _, _ in [] }
    let scores = Scores()
    for cuts in [[0, 50], [0, 1, 17, 49, 50], [0, 25, 50]] {
      var state = HeadState(rows: Scores.rows, hidden: Scores.hidden, vocabulary: Scores.vocabulary, request: request)
      for (start, stop) in zip(cuts, cuts.dropFirst()) {
        let (part, z) = scores.part(start..<stop)
        state.add(start, part)
        state.add(start, logits: z)
      }
      let found = state.result()
      for row in 0..<Scores.rows { scores.check(found, row) }
      XCTAssertEqual(found.logits, Tensor([Scores.rows, Scores.vocabulary], scores.z))
    }
  }

  func testTheCanvasOfAScreen() {
    func draft(_ step: Int, _ tokens: [Int], _ accepted: [Bool], start: Int = 0) -> Event {
      .draft(Draft(canvasIndex: 0, step: step, start: start, tokens: tokens, accepted: accepted))
    }
    var text = CanvasText()
    text.fold(draft(1, [9, 5, 9], [false, true, false]))
    XCTAssertEqual(text.cells.map(\.state), [.draft, .accepted, .draft])
    text.fold(draft(2, [4, 5, 9], [true, false, false]))
    XCTAssertEqual(text.cells.map(\.state), [.accepted, .accepted, .draft])
    text.fold(draft(3, [4, 6, 9], [false, false, false]))
    XCTAssertEqual(text.cells.map(\.state), [.accepted, .draft, .draft], "a token that changed is a guess again")
    XCTAssertEqual(text.step, 3)
    text.fold(.committed(Committed(canvasIndex: 0, start: 0, tokens: [4, 6])))
    XCTAssertEqual(text.answer, [4, 6])
    text.fold(draft(1, [7, 8], [true, false], start: 2))
    XCTAssertEqual(text.cells.map(\.token), [4, 6, 7, 8])
    XCTAssertEqual(text.cells.map(\.id), [0, 1, 2, 3])
    XCTAssertEqual(text.cells.map(\.state), [.committed, .committed, .accepted, .draft])
    text.fold(.committed(Committed(canvasIndex: 1, start: 2, tokens: [7, 1])))
    text.fold(.done(GenerationStatistics()))
    XCTAssertEqual(text.answer, [4, 6, 7, 1])
    XCTAssertEqual(text.statistics, GenerationStatistics())
  }
}

/// Random scores, many of them equal, and what is to be said of them.
private struct Scores {
  static let rows = 3
  static let vocabulary = 50
  static let hidden = 4

  var z: [Float] = []
  var noise: [Float] = []
  var table: [Float] = []

  init() {
    for _ in 0..<(Self.rows * Self.vocabulary) {
      let value = Float.random(in: -36...36).rounded()
      z.append(value / 4)
      noise.append(Float.random(in: -3...3))
    }
    for _ in 0..<(Self.vocabulary * Self.hidden) { table.append(Float.random(in: -1...1)) }
  }

  func row(_ values: [Float], _ row: Int, _ tokens: Range<Int>) -> [Float] {
    let start = row * Self.vocabulary
    return Array(values[(start + tokens.lowerBound)..<(start + tokens.upperBound)])
  }

  /// The first of the largest.
  func best(_ values: [Float]) -> Int {
    var found = 0
    for (index, value) in values.enumerated() where value > values[found] { found = index }
    return found
  }

  func part(_ tokens: Range<Int>) -> (TilePart, [Float]) {
    var part = TilePart(top: [], arg: [], sumOthers: [], sumZOthers: [], score: [], sample: [], sampleZ: [], soft: [])
    var all: [Float] = []
    for row in 0..<Self.rows {
      let values = self.row(z, row, tokens)
      let own = self.row(noise, row, tokens)
      var noisy: [Float] = []
      for index in values.indices { noisy.append(values[index] + own[index]) }
      let most = best(values)
      let drawn = best(noisy)
      var sum: Float = 0
      var sumZ: Float = 0
      var soft = [Float](repeating: 0, count: Self.hidden)
      for index in values.indices {
        let weight = expf(values[index] - values[most])
        if index != most {
          sum += weight
          sumZ += weight * values[index]
        }
        for column in 0..<Self.hidden {
          soft[column] += weight * table[(tokens.lowerBound + index) * Self.hidden + column]
        }
      }
      all += values
      part.top.append(values[most])
      part.arg.append(most)
      part.sumOthers.append(sum)
      part.sumZOthers.append(sumZ)
      part.score?.append(noisy[drawn])
      part.sample?.append(drawn)
      part.sampleZ?.append(values[drawn])
      part.soft? += soft
    }
    return (part, all)
  }

  /// Over the whole vocabulary, in double precision.
  func check(_ found: HeadOutput, _ row: Int) {
    let values = self.row(z, row, 0..<Self.vocabulary)
    let own = self.row(noise, row, 0..<Self.vocabulary)
    var total = 0.0
    for value in values { total += exp(Double(value)) }
    var entropy = 0.0
    var soft = [Double](repeating: 0, count: Self.hidden)
    var noisy: [Float] = []
    for (token, value) in values.enumerated() {
      let probability = exp(Double(value)) / total
      entropy -= probability * log(probability)
      noisy.append(value + own[token])
      for column in 0..<Self.hidden { soft[column] += probability * Double(table[token * Self.hidden + column]) }
    }
    let order = values.indices.sorted { (left: Int, right: Int) -> Bool in
      values[left] != values[right] ? values[left] > values[right] : left < right
    }
    let drawn = best(noisy)
    XCTAssertEqual(found.argmax[row], order[0])
    XCTAssertEqual(found.topIds?[row], Array(order.prefix(6)))
    XCTAssertEqual(found.sample?[row], drawn)
    XCTAssertEqual(Double(found.logZ[row]), log(total), accuracy: 1e-4)
    var others = 0.0
    for token in order.dropFirst() { others += exp(Double(values[token]) - Double(values[order[0]])) }
    XCTAssertEqual(Double(found.others[row]), others, accuracy: 1e-5 * others)
    XCTAssertEqual(Double(found.sampleProbability?[row] ?? .nan), exp(Double(values[drawn])) / total, accuracy: 1e-5)
    XCTAssertEqual(Double(found.entropy[row]), entropy, accuracy: 1e-4)
    let mixed = found.soft?.floats ?? []
    for column in 0..<Self.hidden {
      XCTAssertEqual(Double(mixed[row * Self.hidden + column]), soft[column], accuracy: 1e-5)
    }
  }
}
